"""The real store: files of snapshots, and the list of completed checkpoints."""
