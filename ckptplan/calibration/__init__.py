"""Measures a cell on a machine to calibrate predictions, and validates plans against measurements."""
