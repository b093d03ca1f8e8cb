"""The parameters that an algorithm masks, and what is known of each."""
