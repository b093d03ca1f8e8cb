"""How good a model's outputs are on data."""
