"""Other runtimes' interfaces, for programs that move here with one changed import."""
