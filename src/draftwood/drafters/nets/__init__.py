"""Networks that draft: one module per file, float weights, no training and no state."""
