"""`penstock report`: everything about a running job in one HTML file."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import click

from penstock.cli.reaching import Jobs, reaching_jobs
from penstock.cli.report_html import report_html
from penstock.core.errors import UsageError
from penstock.core.view_texts import size_text


@click.command("report")
@click.argument("job")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="The file to write. A file that is there is replaced.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON: the job, and where the report is.")
@reaching_jobs
def report(*, jobs: Jobs, job: str, output: Path, as_json: bool) -> None:
    """Write a report of a running JOB: its graph, its checkpoints with their timelines, its failures with tracebacks,
    its slots and its settings. The file needs no other file, and can be attached to a ticket.

    Tracebacks and settings may have secrets of the program: look at the report before you send it.
    """
    found = jobs.find(job)
    about = jobs.call(found, "info")
    checkpoints = jobs.call(found, "checkpoints")["checkpoints"]
    failures = jobs.call(found, "exceptions")["exceptions"]
    made = f"Made by penstock {version('penstock')} on {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC."
    page = report_html(about, checkpoints, failures, made=made)
    try:
        output.write_text(page, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"the report cannot be written to {str(output)!r}: {error.strerror}") from error
    size = len(page.encode())
    said = {"job": found, "report": str(output.absolute()), "size_bytes": size}
    click.echo(json.dumps(said) if as_json else f"{output}: {size_text(size)}")
