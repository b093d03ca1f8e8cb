"""Cycle models of one layer: the fast one, the event-driven one, and machines without a grid."""
