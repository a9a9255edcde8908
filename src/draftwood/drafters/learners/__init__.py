"""Learners: the losses by which the training loop trains each kind of net."""
