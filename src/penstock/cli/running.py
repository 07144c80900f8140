"""A job that ends with its block, whatever happens in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from penstock.cli.failures import uninterrupted
from penstock.core.errors import StreamError
from penstock.spark.environment import Environment
from penstock.spark.job import Job

CANCEL_TIMEOUT_S = 30.0


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
