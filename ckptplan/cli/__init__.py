"""The command line: each command parses its options, calls one use case, renders the result and exits."""
