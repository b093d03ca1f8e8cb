"""What a machine is asked to do: sparse products and weightless operators, from a model or from sizes."""
