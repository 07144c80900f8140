"""Snapshots as data: what is in one, its states as tables, how two differ, and new ones made of tables."""
