"""Models with their data and optimizers."""
