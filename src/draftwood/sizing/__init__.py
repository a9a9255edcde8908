"""How large a tree should be: timed rounds, the expected gain of a size, and what the banner says of the choice."""
