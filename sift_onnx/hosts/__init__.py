"""Passes as parts of other people's pipelines: one adapter per file, each of which needs the package that it is for."""
