"""What the steps of a cell keep: where it can be, how it is saved as a checkpoint, and how it is put back."""
