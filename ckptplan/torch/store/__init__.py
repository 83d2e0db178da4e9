"""Keeps checkpoints: on the device, in host memory or in files."""
