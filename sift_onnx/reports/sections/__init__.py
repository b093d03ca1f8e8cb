"""What a report page says about each kind of result."""
