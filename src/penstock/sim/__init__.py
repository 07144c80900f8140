"""The simulator, the shell without Spark: a whole job in one process, from one seed, with faults."""
