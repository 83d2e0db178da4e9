"""Tests mirror the package; ``laws`` holds what must be true of every strategy."""
