"""Which added features have to be zero, and which inputs of a node make what it adds zero."""
