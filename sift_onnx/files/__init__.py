"""Files: the wire format of protobuf, tensors that are read when they are used, external data, atomic writes."""
