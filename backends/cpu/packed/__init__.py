"""Models on disk as they are when a session has lowered them: the plan, and the weights of its layers."""
