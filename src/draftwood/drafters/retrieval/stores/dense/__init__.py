"""Dense datastores: continuations found by the hidden state before them."""
