"""Commands that explain, forecast and replay."""
