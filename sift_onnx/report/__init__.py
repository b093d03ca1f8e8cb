"""Results as tables, JSON and HTML."""
