"""What Wide does with a plan of new sizes: it edits the graph, draws or embeds weights, and reports."""
