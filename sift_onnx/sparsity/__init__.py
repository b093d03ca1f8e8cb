"""Which weights stay active: how many in each layer, in which pattern, and the values that they start from."""
