"""Keyed state in RocksDB, on the disk of the slot. The state may be larger than memory, and a checkpoint uploads only
the files that no earlier checkpoint has uploaded."""
