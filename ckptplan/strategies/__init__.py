"""Checkpointing strategies, one per file, and the registry that finds them."""
