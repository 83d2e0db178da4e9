"""Physics to costs: what an action takes, and what the equations make of it."""
