"""The job master: the driver's loop, what it does for the coordinator, and the parts of sources and sinks beside it."""
