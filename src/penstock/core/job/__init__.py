"""The life of a job: slots, deployments, failovers, restarts and the end, as one machine."""
