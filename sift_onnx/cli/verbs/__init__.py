"""The verbs: one file each, imported when it is called."""
