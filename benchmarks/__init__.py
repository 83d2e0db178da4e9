"""Timings, measured side by side in one run: each script prints a table and writes a JSON beside it."""
