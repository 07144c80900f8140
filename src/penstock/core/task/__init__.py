"""A task's side of a checkpoint: the order of its steps, its acknowledgement or refusal, and its end."""
