"""Runs layers and networks that take many time steps a call in pieces. A step of the plan is a piece."""
