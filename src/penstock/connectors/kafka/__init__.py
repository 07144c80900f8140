"""Kafka as a source and as a sink. Both need the extra `kafka`."""
