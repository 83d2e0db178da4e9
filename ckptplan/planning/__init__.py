"""Chooses plans: a request, the best answer to it, and what the plan says of its numbers."""
