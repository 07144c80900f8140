"""The requests that other processes may send to a running job, over the job's control socket."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from penstock.core.errors import UsageError
from penstock.core.views import CheckpointDetails
from penstock.net.control import Request
from penstock.plan.graph import Plan
from penstock.runtime.views import JobView
from penstock.spark.described import checkpoint_of, failures_of, job_of, summary_of

_ARGUMENTS: dict[str, Any] = {
    "after": int,
    "checkpoint": int | None,
    "directory": str | None,
    "drain": bool,
    "full": bool,
    "lines": int,
    "native": bool,
    "parallelism": int,
    "slot": int | None,
}


class Controlled(Protocol):
    """The part of a running job that other processes can use."""

    name: str

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings of the job, as plain values."""
        ...

    @property
    def checkpoints(self) -> list[CheckpointDetails]:
        """The job's checkpoints, newest first."""
        ...

    def view(self) -> JobView:
        """A view of the job."""
        ...

    def plan(self) -> Plan | None:
        """The plan that the job runs."""
        ...

    def log_lines(self, *, after: int = 0, slot: int | None = None, lines: int = 200) -> dict[str, Any]:
        """The last lines of the job's log."""
        ...

    def checkpoint(self, *, full: bool = False) -> int:
        """Take a checkpoint and wait until it is complete."""
        ...

    def savepoint(self, directory: str | os.PathLike[str] | None = None, *, native: bool = False) -> str:
        """Take a savepoint and wait until it is complete."""
        ...

    def stop(
        self, *, savepoint: str | os.PathLike[str] | None = None, drain: bool = False, native: bool = False
    ) -> str:
        """Take a savepoint and end the job; wait for both."""
        ...

    def rescale(self, parallelism: int) -> None:
        """Change the parallelism and wait until the job runs with the changed parallelism."""
        ...

    def cancel(self) -> None:
        """End the job at once."""
        ...


def handle(job: Controlled, request: Request) -> dict[str, Any]:
    """Carry a request out, and return the answer. Raises `UsageError` for an unknown command or wrong arguments, and
    every error that the job raises."""
    commands: dict[str, Callable[..., dict[str, Any]]] = {
        "view": lambda: summary_of(job.name, job.view()),
        "info": lambda: job_of(job.name, job.view(), job.plan(), job.settings),
        "exceptions": lambda: {"exceptions": failures_of(job.view())},
        "logs": lambda slot=None, after=0, lines=200: job.log_lines(after=after, slot=slot, lines=lines),
        "checkpoints": lambda checkpoint=None: {"checkpoints": _checkpoints(job, checkpoint)},
        "checkpoint": lambda full=False: {"checkpoint": job.checkpoint(full=full)},
        "savepoint": lambda directory=None, native=False: {"savepoint": job.savepoint(directory, native=native)},
        "stop": lambda directory=None, drain=False, native=False: {
            "savepoint": job.stop(savepoint=directory, drain=drain, native=native)
        },
        "rescale": lambda parallelism: _rescale(job, parallelism),
        "cancel": lambda: _cancel(job),
    }
    command = commands.get(request.command)
    if command is None:
        raise UsageError(
            f"a job does not know the command {request.command!r}", hint=f"the commands are {', '.join(commands)}"
        )
    try:
        # Only the arguments are tried here: a `TypeError` that comes out of the job is no mistake of the caller.
        inspect.signature(command).bind(**request.arguments)
        for name, value in request.arguments.items():
            msgspec.convert(value, _ARGUMENTS[name])
    except (TypeError, msgspec.ValidationError) as error:
        raise UsageError(f"the arguments of command {request.command} are wrong: {error}") from error
    return command(**request.arguments)


def _checkpoints(job: Controlled, number: int | None) -> list[Any]:
    """All checkpoints that are remembered, or the checkpoint of this number."""
    found = job.checkpoints
    chosen = [c for c in found if number is None or c.checkpoint == number]
    if number is not None and not chosen:
        known = ", ".join(str(c.checkpoint) for c in found)
        raise UsageError(
            f"checkpoint {number} of job {job.name!r} is not remembered",
            hint=f"the job remembers the checkpoints {known}; Checkpointing(history=...) says how many are remembered"
            if known
            else "the job has no checkpoint yet",
        )
    return [checkpoint_of(checkpoint, job.plan()) for checkpoint in chosen]


def _rescale(job: Controlled, parallelism: int) -> dict[str, Any]:
    job.rescale(parallelism)
    return {"slots": parallelism}


def _cancel(job: Controlled) -> dict[str, Any]:
    job.cancel()
    return {}
