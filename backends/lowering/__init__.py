"""From a model to a plan: steps of operators in regions, and sub-graphs of what is left; knows no back end."""
