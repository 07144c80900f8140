"""The other shell: a whole job in one process, from one seed, with faults."""
