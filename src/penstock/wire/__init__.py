"""Bytes to messages and record batches, and back. No sockets."""
