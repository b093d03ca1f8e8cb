"""Transforms that replace layer after layer at the layer's own cost: what Parallel, Factorized and Doped share."""
