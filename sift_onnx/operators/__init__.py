"""What is known about operators: their domains, names, traits and parameters, and registries of rules for them."""
