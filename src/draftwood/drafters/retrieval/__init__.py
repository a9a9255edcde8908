"""Drafters that run no model: they copy from texts."""
