"""What keeps a model and its optimizer within masks: hooks around forward passes and optimizer steps."""
