"""Concrete shapes: of inputs, by inference, and by evaluation of what a graph computes of sizes."""
