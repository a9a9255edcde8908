"""Learners that unroll a drafter over its own outputs."""
