"""A whole workload on a machine: cycles of all layers, speed-ups and their bands, charts and traces."""
