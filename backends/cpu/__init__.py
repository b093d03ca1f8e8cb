"""The sparse CPU back end: lowering, packing and scheduling in Python, kernels in C++."""
