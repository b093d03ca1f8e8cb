"""The kernels of a run's masked layers."""
