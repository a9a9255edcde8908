"""Rules that end a chain while it is drafted."""
