"""Where the features of an original lie in the wider axes of its wide model."""
