"""Operators that exporters write as several nodes, and layers with what is computed of their results.

A file finds one of them in the graph and says which nodes it is made of;
:mod:`~sift_onnx.backends.lowering.node_groups` asks them one after the other.
"""
