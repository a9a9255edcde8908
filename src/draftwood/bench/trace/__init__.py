"""Traces: rounds on disk, and what another tree, drafter or machine would have made of them."""
