"""Operator coordinators: the parts of sources and sinks that run on the driver, beside the master.

The checkpoint coordinator says when each operator coordinator takes its snapshot. Its gateways keep the events of
operator coordinators on the right side of the barriers (`core.coordinator.gateway`).

    contract.py       what an operator coordinator is
    enumeration.py    the coordinator of a source that finds its splits while the job runs
    commits.py        the coordinator of a sink that commits on the driver
    of_job.py         all operator coordinators of a job, and what the checkpoint coordinator wants of them
    making.py         which operators of a plan have a coordinator, and of which kind
"""
