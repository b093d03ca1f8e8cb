"""Mutated model files, tried in processes of their own: ``PYTHONPATH=tests python -m fuzz``."""
