"""Searches for the best setting of any strategy, and proves it by bounds."""
