"""What is decided for the kernels before a run: which regions pay, which algorithm a layer has, packed weights."""
