"""Jobs as commands run them: over when their block is, whatever happens in it."""

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
    """Runs a plan that was made elsewhere, for what cannot be said with streams."""

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
    """Start the job; if the block is left before it is over, cancel it and wait until nothing of it is left."""
    job = environment.start(name)
    try:
        yield job
    finally:
        with uninterrupted(), suppress(StreamError, TimeoutError):
            if not job.is_over:
                job.cancel()
            # A job that has ended may still be letting go of its socket.
            job.wait(timeout=CANCEL_TIMEOUT_S)
