"""Training of drafters: data, training loop, objectives, file formats."""
