"""Soak: a live server under many clients, good and bad, while its drafter fails; then what must be as it was before."""
