"""Jobs as commands run them: over when their block is, whatever happens in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from penstock.api.checkpointing import Checkpointing
from penstock.cli.failures import uninterrupted
from penstock.core.errors import StreamError
from penstock.plan.graph import Plan
from penstock.settings import NetworkSettings, Restart
from penstock.spark.environment import Environment
from penstock.spark.job import Job

CANCEL_TIMEOUT_S = 30.0


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
        if not job.is_over:
            with uninterrupted(), suppress(StreamError, TimeoutError):
                job.cancel()
                job.wait(timeout=CANCEL_TIMEOUT_S)
