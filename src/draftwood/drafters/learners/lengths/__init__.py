"""Learners of nets that decide how long a draft is."""
