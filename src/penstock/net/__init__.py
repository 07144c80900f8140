"""The real transport: ZeroMQ, its keys and its addresses. Nothing else of the package calls ZeroMQ."""
