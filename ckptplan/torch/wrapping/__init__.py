"""Wraps networks, so that a call with a whole sequence runs under a plan."""
