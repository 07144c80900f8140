"""How a command reaches jobs: the jobs of this user on this host by their sockets, or the jobs of a driver elsewhere by
the URL of its page and a token."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import click

from penstock.core.errors import UsageError
from penstock.net import control
from penstock.net.rest_client import RestJobs
from penstock.terminal.failures import reported_failures


class Jobs(Protocol):
    """Jobs that can be asked."""

    def running(self) -> list[str]:
        """The ids of the jobs."""
        ...

    def find(self, text: str) -> str:
        """The id of the job that `text` names. Raises `UsageError`."""
        ...

    def call(
        self, job: str, command: str, *, heard_within_s: float = control.HEARD_WITHIN_S, **arguments: Any
    ) -> dict[str, Any]:
        """The answer of a job to a command. Raises `PeerError`, or `NoAnswer` if the job is silent."""
        ...


class JobsHere:
    """The jobs of this user on this host."""

    def running(self) -> list[str]:
        """The ids of the jobs whose processes are alive."""
        return control.running_jobs()

    def find(self, text: str) -> str:
        """The id of the job that `text` names: by its id, its name, or the beginning of either."""
        return control.find_job(text)

    def call(
        self, job: str, command: str, *, heard_within_s: float = control.HEARD_WITHIN_S, **arguments: Any
    ) -> dict[str, Any]:
        """Send a command to a job and wait for the answer."""
        return control.call(job, command, heard_within_s=heard_within_s, **arguments)


def reaching_jobs(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that say where its jobs are. The command gets them as `jobs`, and reports failures in
    one line."""

    @click.option("--url", metavar="URL", help="The address of the page of a driver elsewhere: http://host:port.")
    @click.option(
        "--token-file",
        type=click.Path(path_type=Path, dir_okay=False),
        help="A file with the token that the driver elsewhere asks for. Only you should be able to read the file.",
    )
    @functools.wraps(function)
    def reached(*, url: str | None, token_file: Path | None, **values: Any) -> None:
        with reported_failures():
            function(jobs=_jobs(url, token_file), **values)

    return reached


def _jobs(url: str | None, token_file: Path | None) -> Jobs:
    if url is None:
        if token_file is not None:
            raise UsageError("--token-file was given without --url", hint="jobs on this host need no token")
        return JobsHere()
    try:
        token = None if token_file is None else token_file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the token file {str(token_file)!r} cannot be read: {error}") from error
    return RestJobs(url, token)
