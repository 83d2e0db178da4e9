"""Decides which pieces of a sequence are compiled, compiles them, and keeps them for later calls."""
