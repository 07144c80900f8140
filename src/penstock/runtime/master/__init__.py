"""The job master: the loop on the driver, what the loop does for the machines, and the parts of sources and sinks on
the driver."""
