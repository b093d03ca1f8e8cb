"""Charts as inline SVG, drawn with matplotlib."""
