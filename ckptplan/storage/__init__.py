"""Reads and writes files; errors name the file and the place in it."""
