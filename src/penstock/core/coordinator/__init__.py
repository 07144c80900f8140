"""The master's side of a checkpoint: when to trigger, whom to wait for, what to keep, what to give up."""
