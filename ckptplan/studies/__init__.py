"""What is asked beyond one plan: fronts, limits, grids and sensitivities."""
