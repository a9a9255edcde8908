"""How the networks learn: learners for the one loop of the trainer."""
