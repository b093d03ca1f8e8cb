"""Which weights may be active together: unstructured, N:M, transposable N:M, and block masks."""
