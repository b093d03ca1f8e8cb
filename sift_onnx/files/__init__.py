"""What lies in files: the wire format, tensors left where they are, external data, writing without assembling."""
