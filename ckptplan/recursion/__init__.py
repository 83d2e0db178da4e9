"""The mathematics of optimal schedules: recursions over splits, their tables, and lower bounds."""
