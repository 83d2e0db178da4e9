"""Clocks and memory of the devices on which steps run."""
