"""Tables and HTML pages from results of other verbs."""
