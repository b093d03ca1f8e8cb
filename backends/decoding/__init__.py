"""Text of a decoder, one token at a time, on any back end."""
