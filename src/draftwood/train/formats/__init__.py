"""Draft heads in other projects' formats: one file a format, convert.py for all of them."""
