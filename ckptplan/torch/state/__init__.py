"""The state that steps of a cell keep: where it can be, and how to save and restore it in checkpoints."""
