"""`penstock doctor`: what is wrong with this host, with Spark or with a directory, and what to do about it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from penstock.core.errors import HostError
from penstock.terminal.failures import EXIT_FAILED, reported_failures
from penstock.terminal.plain_text import plain

if TYPE_CHECKING:
    from penstock.spark.examination import Finding

_STYLES = {"ok": ("ok     ", "green"), "warning": ("warning", "yellow"), "fault": ("FAULT  ", "red")}


@click.command("doctor")
@click.option("--master", metavar="URL", help="The master of Spark. Default: what Spark is set up for.")
@click.option(
    "--parallelism", type=click.IntRange(min=1), default=1, show_default=True, help="Slots of the job to be run."
)
@click.option(
    "--directory",
    "directories",
    multiple=True,
    help="A folder or URI for checkpoints, or one that a job shares with executors. May be given several times.",
)
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="A setting of Spark: spark.key=value.")
@click.option("--no-spark", is_flag=True, help="Do not start Spark: look at this host and the directories only.")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON, and nothing else.")
def doctor(*, as_json: bool, **options: Any) -> None:
    """Look at Python, packages, Java, Spark, its executors, directories, ports and clocks, and say what is wrong and
    what to do.

    Exits with 1 if there is a fault.
    """
    with reported_failures():
        found: list[dict[str, str]] = []
        for finding in _findings(**options):
            one = {"what": finding.what, "grade": finding.grade.value, "text": finding.text, "fix": finding.fix}
            found.append(one)
            if not as_json:
                _show(one)
        faults = sum(one["grade"] == "fault" for one in found)
        if as_json:
            click.echo(json.dumps({"findings": found, "faults": faults}))
        else:
            click.echo(f"{faults} faults" if faults != 1 else "1 fault")
        if faults:
            sys.exit(EXIT_FAILED)


def _show(one: dict[str, str]) -> None:
    label, colour = _STYLES[one["grade"]]
    click.secho(label, fg=colour, nl=False)
    click.echo(plain(f" {one['what']}: {one['text']}"))
    if one["fix"]:
        click.echo(plain(f"         {one['fix']}"))


def _findings(
    *, master: str | None, parallelism: int, directories: Sequence[str], assignments: Sequence[str], no_spark: bool
) -> Iterator[Finding]:
    from penstock.cli.run import start_spark
    from penstock.spark.examination import Finding, Grade, examine_directory, examine_host, examine_spark
    from penstock.spark.overrides import read_overrides

    settings = read_overrides(assignments).spark
    has_java = True
    for finding in examine_host(os.environ):
        has_java = has_java and not (finding.what == "Java" and finding.grade is Grade.FAULT)
        yield finding
    for directory in directories:
        yield from examine_directory(directory)
    if no_spark or not has_java:
        return
    try:
        spark = start_spark(master, settings)
    except HostError as error:
        yield Finding(what="Spark", grade=Grade.FAULT, text=error.message, fix=error.hint or "see the output above")
        return
    yield from examine_spark(spark, parallelism=parallelism, directories=directories)
