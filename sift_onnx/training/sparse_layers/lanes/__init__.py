"""Functions of activations in lanes: 16 images, or tokens, side by side."""
