"""What optimal strategies share: recursions over splits, their tables, and bounds."""
