"""Mutated model files, tried in processes of their own: ``PYTHONPATH=tests:tests/support python -m fuzz``."""
