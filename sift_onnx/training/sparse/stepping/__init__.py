"""What happens around forward passes and optimizer steps."""
