"""Several drafts from one pass per token: a mixture of their last tokens is what the model reads."""
