"""The sparsity algorithms."""
