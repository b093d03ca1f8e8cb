"""Where a model runs: one module or folder per back end."""
