"""Hostile files, arguments and surroundings, made from a seed, run and judged: ``python -m tests.fuzz``."""
