"""What the model gives for the figures and claims of Bencheikh, Finkbeiner, Neftci 2024."""
