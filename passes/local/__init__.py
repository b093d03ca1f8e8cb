"""What the local members share: Parallel, Factorized and Doped put other layers in the place of one linear unit."""
