"""Snapshots as data: the content of a snapshot, its states as tables, how two snapshots differ, and new savepoints made
of tables."""
