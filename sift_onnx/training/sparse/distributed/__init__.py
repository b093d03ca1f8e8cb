"""Several ranks: masks that are the same on all of them, tensors of which each holds a part."""
