"""Keyed state in RocksDB, on the disk of the slot: larger than memory; a checkpoint uploads only what is new."""
