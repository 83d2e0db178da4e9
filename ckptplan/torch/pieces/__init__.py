"""Runs layers and networks that take many time steps a call in pieces, each of which is a step of the plan."""
