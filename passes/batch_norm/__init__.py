"""BatchNormalization: folded into layers, found where it was, and put back."""
