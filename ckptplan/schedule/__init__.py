"""What a strategy does, as a sequence of typed actions, and the interpreter that proves it."""
