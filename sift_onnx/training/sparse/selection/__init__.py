"""Which weights are active: counts, scores, patterns and first masks, of one tensor at a time."""
