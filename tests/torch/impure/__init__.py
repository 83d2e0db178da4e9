"""Cells and losses that depend on more than their arguments, and what becomes of each under a plan."""
