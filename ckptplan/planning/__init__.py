"""Turns requests into plans, and explains the basis of their numbers."""
