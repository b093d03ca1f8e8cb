"""What a region runs for one set of shapes: which copies it takes, and where its tensors lie."""
