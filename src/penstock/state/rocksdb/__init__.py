"""Keyed state in RocksDB, on the disk of the slot: larger than memory, with checkpoints that upload only what is new."""
