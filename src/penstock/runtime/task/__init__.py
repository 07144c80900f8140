"""A task: the two ends of its channels, its chain of operators, and its part in checkpoints."""
