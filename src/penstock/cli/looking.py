"""`penstock info`, `exceptions` and `logs`: a running job, what has failed in it, and what its code has said."""

from __future__ import annotations

import json
import time
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from penstock.cli.reaching import Jobs, reaching_jobs
from penstock.core.errors import PeerError
from penstock.core.view_texts import count_of, duration_text, size_text, time_text
from penstock.terminal.plain_text import add_plain_row, plain

WIDTH = 120
"""Tables are at least this wide."""
FOLLOWED_EVERY_S = 0.5

_AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print one line of JSON, and nothing else.")
_JOB = click.argument("job")


def console_for_tables() -> Console:
    """A console that is wide enough for a table; a narrower terminal breaks lines instead of cutting cells."""
    return Console(markup=False, highlight=False, width=max(Console().width, WIDTH))


@click.command("info")
@_JOB
@_AS_JSON
@reaching_jobs
def info(*, jobs: Jobs, job: str, as_json: bool) -> None:
    """Show what is known about a running JOB: its steps, its subtasks, its slots, its newest checkpoint."""
    found = jobs.call(jobs.find(job), "info")
    if as_json:
        click.echo(json.dumps(found))
        return
    for name, text in _facts(found):
        click.echo(f"{name + ':':<14}{plain(text)}")
    console = console_for_tables()
    if found["plan"] is not None:
        console.print()
        console.print(_vertices(found))
    if found["slot_views"]:
        console.print()
        console.print(_slots(found))


def _facts(found: dict[str, Any]) -> list[tuple[str, str]]:
    restarts = f", {count_of(found['restarts'], 'restart')}" if found["restarts"] else ""
    failed = f", {found['checkpoints_failed']} failed" if found["checkpoints_failed"] else ""
    last = found["last_checkpoint"]
    newest = "" if last is None else f"; last: {last} in {duration_text(found['last_checkpoint_ms'])}"
    facts = [
        ("job", f"{found['id']} ({found['name']}): {found['state']}"),
        ("slots", f"{found['slots']}{restarts}"),
        ("events", f"{found['rows_read']:,} read"),
        ("checkpoints", f"{found['checkpoints_completed']} completed{failed}{newest}"),
    ]
    latest = found["checkpoints"]["latest_completed"]
    if latest and latest.get("path"):
        size = size_text(latest["totals"]["state_bytes"])
        facts.append(("state", f"{size}, {latest['path']}"))
    if found["watermark_us"] is not None:
        facts.append(("event time", time_text(found["watermark_us"] // 1_000)))
    for stuck in found["stuck"]:
        where = "" if stuck["operator"] is None else f" in step {stuck['operator']!r}, subtask {stuck['subtask']}"
        facts.append(("stuck", f"slot {stuck['slot']} for {duration_text(stuck['stuck_ms'])}{where}"))
    if found["failures"]:
        failure = found["failures"][-1]
        facts.append(("last failure", f"{time_text(failure['when'])}: {_first_line(failure['text'])}"))
    return facts


def _vertices(found: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in ("step", "subtasks", "events in", "events out", "from"):
        table.add_column(title, justify="right" if title in ("subtasks", "events in", "events out") else "left")
    names = {vertex["id"]: vertex["name"] for vertex in found["plan"]["vertices"]}
    for vertex in found["plan"]["vertices"]:
        tasks = [values for name, values in found["tasks"].items() if name.rpartition("[")[0] == vertex["id"]]
        sent = ", ".join(
            f"{names[edge['from']]} ({' by '.join(filter(None, [edge['partitioning'], ', '.join(edge['keys'])]))})"
            for edge in found["plan"]["edges"]
            if edge["to"] == vertex["id"]
        )
        totals = (sum(values.get(name, 0) for values in tasks) for name in ("rows_in", "rows_out"))
        add_plain_row(table, vertex["name"], str(vertex["parallelism"]), *(f"{total:,.0f}" for total in totals), sent)
    return table


def _slots(found: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in ("slot", "host", "pid"):
        table.add_column(title)
    for kind in ("slot_views", "spares"):
        for slot in found[kind]:
            number = str(slot["number"]) if kind == "slot_views" else "spare"
            add_plain_row(table, number, slot["host"] or "comes up", str(slot["pid"] or ""))
    return table


@click.command("exceptions")
@_JOB
@_AS_JSON
@reaching_jobs
def exceptions(*, jobs: Jobs, job: str, as_json: bool) -> None:
    """Show the last failures of a running JOB, the newest first, with the tracebacks of the program."""
    found = jobs.call(jobs.find(job), "exceptions")["exceptions"]
    if as_json:
        click.echo(json.dumps(found))
    elif not found:
        click.echo("nothing has failed")
    else:
        for failure in found:
            _show_failure(failure)


def _show_failure(failure: dict[str, Any]) -> None:
    where = "" if failure["operator"] is None else f" in {failure['operator']!r}"
    subtask = "" if failure["subtask"] is None else f", subtask {failure['subtask']}"
    pause = failure["restart_in_ms"]
    follows = "no restart followed" if pause is None else f"restarted after {duration_text(pause)}"
    click.secho(plain(f"{time_text(failure['when'])}{where}{subtask}: {_first_line(failure['text'])}"), bold=True)
    if failure["epoch"] is not None:
        click.echo(f"  {follows}")
    for line in failure["traceback"].rstrip().splitlines():
        click.echo(f"  {plain(line)}")


def _first_line(text: str) -> str:
    return (text.splitlines() or [""])[0]


@click.command("logs")
@_JOB
@click.option("--slot", type=click.IntRange(min=0), help="Only what this slot has said.")
@click.option("--lines", type=click.IntRange(min=1), default=200, show_default=True, help="How many lines at first.")
@click.option("--follow", is_flag=True, help="Go on until the job ends, or until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Print each line as an object of JSON.")
@reaching_jobs
def logs(*, jobs: Jobs, job: str, slot: int | None, lines: int, follow: bool, as_json: bool) -> None:
    """Show the last lines that the code of a running JOB has logged or printed in its slots, and what the driver has
    logged about the job."""
    found_job = jobs.find(job)
    after = 0
    while True:
        try:
            answer = jobs.call(found_job, "logs", slot=slot, after=after, lines=lines)
        except PeerError:
            if not after:
                raise
            # The job has ended meanwhile.
            return
        if answer["left_out"] and after:
            click.echo(f"({count_of(answer['left_out'], 'line')} left out)", err=True)
        for line in answer["lines"]:
            click.echo(json.dumps(line) if as_json else _log_text(line))
        after = answer["next"]
        if not follow:
            return
        time.sleep(FOLLOWED_EVERY_S)


def _log_text(line: dict[str, Any]) -> str:
    if line.get("is_whole"):
        return plain(line["text"])
    place = "driver" if line["slot"] is None else f"slot {line['slot']}"
    if line["operator"] is not None:
        subtask = "" if line["subtask"] is None else f"[{line['subtask']}]"
        place += f" {line['operator']}{subtask}"
    level = f"{line['level']} " if line["level"] else ""
    text = "\n    ".join(plain(part) for part in line["text"].splitlines())
    return f"{time_text(line['time'])} {level}{plain(place)} {plain(line['logger'])}: {text}"
