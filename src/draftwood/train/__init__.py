"""Training: data, the loop, checkpoints. Optional: nothing else imports it."""
