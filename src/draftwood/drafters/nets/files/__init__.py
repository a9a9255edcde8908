"""Trained drafters as files: their shape, their weights, and which target they belong to."""
