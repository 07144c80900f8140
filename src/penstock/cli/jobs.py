"""`penstock list`, `checkpoint`, `savepoint`, `stop`, `rescale` and `cancel`: show this user's running jobs, and send
requests to them."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from penstock.api.job_names import job_slug
from penstock.cli.reaching import Jobs, reaching_jobs
from penstock.core.errors import NoAnswer, PeerError
from penstock.terminal.plain_text import plain

LISTED_WITHIN_S = 3.0
"""A job that says nothing for this long is listed with the state `NO_ANSWER`."""
NO_ANSWER = "does not answer"
WIDTH = 112
"""Where there is no terminal, tables are at least this wide."""

_AS_JSON = click.option("--json", "as_json", is_flag=True, help="End with one line of JSON.")
_JOB = click.argument("job")
_NATIVE = click.option(
    "--native",
    is_flag=True,
    help="Write the format of the job's state back end: quicker, but only that back end can restore the savepoint.",
)


@click.command("list")
@_AS_JSON
@reaching_jobs
def list_jobs(*, jobs: Jobs, as_json: bool) -> None:
    """Show the running jobs of this user on this host, or the jobs of a driver elsewhere."""
    known = jobs.running()
    # All jobs are asked at the same time, so that jobs that do not answer do not delay the other jobs.
    with ThreadPoolExecutor(max_workers=max(1, min(len(known), 64))) as asking:
        found = [view for view in asking.map(partial(_view, jobs), known) if view is not None]
    if as_json:
        click.echo(json.dumps(found))
    elif not found:
        click.echo("no job of this user runs on this host")
    else:
        console = Console()
        # A narrow terminal breaks lines, and elsewhere lines may be long.
        (console if console.is_terminal else Console(width=max(console.width, WIDTH))).print(_table(found))


def _view(jobs: Jobs, job: str) -> dict[str, Any] | None:
    try:
        return jobs.call(job, "view", heard_within_s=LISTED_WITHIN_S)
    except NoAnswer:
        return {"id": job, "state": NO_ANSWER}
    except PeerError:
        # The job has ended meanwhile.
        return None


def _table(jobs: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("job", no_wrap=True, overflow="fold", min_width=max(len(title_of(job)) for job in jobs))
    table.add_column("state", no_wrap=True, min_width=max(len(job["state"]) for job in jobs))
    for title in ("slots", "restarts", "rows read", "checkpoints", "last"):
        table.add_column(title, justify="right")
    for job in jobs:
        table.add_row(title_of(job), job["state"], *([] if job["state"] == NO_ANSWER else _numbers(job)))
    return table


def title_of(job: dict[str, Any]) -> str:
    """The id of a job. The id of a job elsewhere does not say the job's name: the name comes first."""
    name = plain(job.get("name", job["id"]))
    return str(job["id"]) if job["id"].startswith(job_slug(name)) else f"{name} {job['id']}"


def _numbers(job: dict[str, Any]) -> list[str]:
    last = job["last_checkpoint"]
    failed = f", {job['checkpoints_failed']} failed" if job["checkpoints_failed"] else ""
    return [
        str(job["slots"]),
        str(job["restarts"]),
        f"{job['rows_read']:,}",
        f"{job['checkpoints_completed']}{failed}",
        "none" if last is None else f"{last} in {job['last_checkpoint_ms']} ms",
    ]


@click.command("checkpoint")
@_JOB
@click.option("--full", is_flag=True, help="Refer to no file of an earlier checkpoint.")
@_AS_JSON
@reaching_jobs
def checkpoint(*, jobs: Jobs, job: str, full: bool, as_json: bool) -> None:
    """Have a running JOB (its id, its name, or the beginning of either) take a checkpoint now."""
    done = "checkpoint {checkpoint} is complete"
    _ask(jobs, job, "checkpoint", as_json=as_json, said=lambda result: done.format(**result), full=full)


@click.command("savepoint")
@_JOB
@click.argument("directory", required=False)
@_NATIVE
@_AS_JSON
@reaching_jobs
def savepoint(*, jobs: Jobs, job: str, directory: str | None, native: bool, as_json: bool) -> None:
    """Have a running JOB take a savepoint below DIRECTORY, and go on."""
    _ask(
        jobs,
        job,
        "savepoint",
        as_json=as_json,
        said=lambda result: f"savepoint: {result['savepoint']}",
        directory=_absolute(directory),
        native=native,
    )


@click.command("stop")
@_JOB
@click.option("--savepoint", "directory", metavar="DIRECTORY", help="Where the savepoint goes.")
@click.option("--drain", is_flag=True, help="Close all windows and finish all steps first, as if the data had ended.")
@_NATIVE
@_AS_JSON
@reaching_jobs
def stop(*, jobs: Jobs, job: str, directory: str | None, drain: bool, native: bool, as_json: bool) -> None:
    """End a running JOB with a savepoint, from which the job can be started again."""
    _ask(
        jobs,
        job,
        "stop",
        as_json=as_json,
        said=lambda result: f"stopped; savepoint: {result['savepoint']}",
        directory=_absolute(directory),
        drain=drain,
        native=native,
    )


@click.command("rescale")
@_JOB
@click.argument("parallelism", type=click.IntRange(min=1))
@_AS_JSON
@reaching_jobs
def rescale(*, jobs: Jobs, job: str, parallelism: int, as_json: bool) -> None:
    """Have a running JOB take a checkpoint, and go on from that checkpoint with another PARALLELISM."""
    _ask(
        jobs,
        job,
        "rescale",
        as_json=as_json,
        said=lambda result: f"the job runs with {result['slots']} slots",
        parallelism=parallelism,
    )


@click.command("cancel")
@_JOB
@_AS_JSON
@reaching_jobs
def cancel(*, jobs: Jobs, job: str, as_json: bool) -> None:
    """End a running JOB at once, without a savepoint."""
    _ask(jobs, job, "cancel", as_json=as_json, said=lambda _result: "the job is being cancelled")


def _ask(
    jobs: Jobs, job: str, command: str, *, as_json: bool, said: Callable[[dict[str, Any]], str], **arguments: Any
) -> None:
    found = jobs.find(job)
    result = jobs.call(found, command, **arguments)
    click.echo(json.dumps({"job": found, **result}) if as_json else said(result))


def _absolute(directory: str | None) -> str | None:
    """The directory as a full path, because the job has another working folder. A URI stays as it is."""
    return directory if directory is None or "://" in directory else str(Path(directory).absolute())


COMMANDS = (list_jobs, checkpoint, savepoint, stop, rescale, cancel)
