"""The state of a run: its checkpoints, its best weights and their average."""
