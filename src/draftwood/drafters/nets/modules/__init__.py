"""One network per file: float weights, no training and no state."""
