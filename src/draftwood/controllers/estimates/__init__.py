"""How likely drafted tokens are accepted, learned from finished rounds."""
