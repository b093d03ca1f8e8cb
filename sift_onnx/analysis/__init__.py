"""What a graph means: sizes and the equations between them, layers, their order and cost."""
