"""The command line, one command per file: parse, call one use case, render, exit."""
