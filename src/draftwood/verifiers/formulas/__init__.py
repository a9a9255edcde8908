"""Acceptance by formula: yardsticks and tables, never part of a rule."""
