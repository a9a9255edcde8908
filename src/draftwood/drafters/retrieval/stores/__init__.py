"""Datastores: tokens of a corpus with their suffix arrays, in one memory-mapped file."""
