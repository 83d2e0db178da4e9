"""Measures a cell on a machine, and plans on both: what a prediction rests on, and whether it was true."""
