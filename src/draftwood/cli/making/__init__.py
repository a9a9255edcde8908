"""Commands that make files: heads, data, stores, expanded models."""
