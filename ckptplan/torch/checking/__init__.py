"""Compares runs under a schedule with a plain loop: the first steps of a call, or a whole sequence."""
