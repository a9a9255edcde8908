"""What a pass and a draft cost."""
