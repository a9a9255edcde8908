"""Rules compared on the same drafts, and the bounds of any exact rule."""
