"""Output formats: one module each, found by the registry."""
