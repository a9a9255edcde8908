"""Commands that answer prompts."""
