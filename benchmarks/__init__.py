"""Timings, measured together in one run: each script prints a table and writes its numbers to a JSON file."""
