"""Finds the best setting of any strategy, with a proof by bounds."""
