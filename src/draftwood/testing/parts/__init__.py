"""Models, drafters and watchers with known behaviour."""
