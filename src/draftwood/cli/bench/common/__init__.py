"""What the measuring commands share."""
