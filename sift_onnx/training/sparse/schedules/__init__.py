"""Numbers that change while a model trains: sparsities, drop fractions, and when masks are updated."""
