"""The figures and claims of Bencheikh, Finkbeiner, Neftci 2024, compared with the model."""
