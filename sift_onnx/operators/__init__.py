"""What every room has to know of an operator."""
