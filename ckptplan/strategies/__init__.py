"""One checkpointing strategy a file, and the registry that finds them."""
