"""Searching for what no formula gives: which sub-layers a draft can do without."""
