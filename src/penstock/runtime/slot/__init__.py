"""A slot: the loop of one process, the tasks that it deploys, and the other slots that it knows."""
