"""Studies of more than one plan: fronts, largest jobs, grids and sensitivities."""
