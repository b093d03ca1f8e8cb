"""What verbs report, as records: one definition for those who write, read and show it, and for its JSON (schema 1)."""
