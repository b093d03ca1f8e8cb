"""Layers that cost their active weights in training too, and the regions of a graph that they make."""
