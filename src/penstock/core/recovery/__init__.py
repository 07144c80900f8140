"""What a checkpoint is made of and where its parts lie, so that a job can start from it again."""
