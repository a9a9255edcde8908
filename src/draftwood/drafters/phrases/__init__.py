"""Drafts from phrases: pools of short continuations, and the target that writes them ahead."""
