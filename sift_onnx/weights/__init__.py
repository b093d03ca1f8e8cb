"""Weights under explicit masks: in memory, in a file, and found again in it."""
