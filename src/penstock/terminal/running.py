"""Jobs that run as long as a block of code, whatever happens in the block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from penstock.api.checkpointing import Checkpointing
from penstock.core.errors import StreamError
from penstock.plan.graph import Plan
from penstock.settings import NetworkSettings, Restart
from penstock.spark.environment import Environment
from penstock.spark.job import Job
from penstock.terminal.failures import uninterrupted

CANCEL_TIMEOUT_S = 60.0


class PlannedEnvironment(Environment):
    """An environment that runs a given plan, for jobs that cannot be written with streams."""

    def __init__(
        self,
        spark: Any,
        *,
        plan: Plan,
        checkpointing: Checkpointing,
        restart: Restart,
        network: NetworkSettings | None = None,
    ) -> None:
        super().__init__(
            spark, parallelism=plan.parallelism, checkpointing=checkpointing, restart=restart, network=network
        )
        self._given = plan

    def plan(self) -> Plan:
        """The plan that was given."""
        return self._given


@contextmanager
def running_job(environment: Environment, name: str) -> Iterator[Job]:
    """Start a job. If the block ends before the job is over, cancel the job. In any case wait until the job has ended
    and has closed its connections."""
    job = environment.start(name)
    try:
        yield job
    finally:
        with uninterrupted(), suppress(StreamError, TimeoutError):
            if not job.is_over:
                job.cancel()
            # A job that is over may still be closing its socket.
            job.wait(timeout=CANCEL_TIMEOUT_S)
