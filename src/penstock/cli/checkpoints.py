"""`penstock checkpoints`: the checkpoints of a running job, and the part of every subtask in one checkpoint."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from penstock.core.view_texts import duration_text, size_text, time_text
from penstock.net.control import call, find_job
from penstock.terminal.failures import reported_failures

LEAST_WIDTH = 112
"""Tables are at least this wide. A narrower terminal breaks the lines, which is better than cutting cells."""

_RIGHT = ("took", "written", "state", "acks", "start delay", "aligned", "frozen", "written in", "in flight")


@click.command("checkpoints")
@click.argument("job")
@click.argument("checkpoint", type=click.IntRange(min=1), required=False, metavar="[ID]")
@click.option("--json", "as_json", is_flag=True, help="Print everything as one line of JSON.")
def checkpoints(*, job: str, checkpoint: int | None, as_json: bool) -> None:
    """Show the checkpoints of a running JOB; or, if an ID is given, that checkpoint with all subtasks."""
    with reported_failures():
        # Without markup: an error text may have brackets, which would be read as colours.
        console = Console(markup=False, highlight=False, width=max(Console().width, LEAST_WIDTH))
        found = call(find_job(job), "checkpoints", checkpoint=checkpoint)["checkpoints"]
        if as_json:
            click.echo(json.dumps(found))
        elif not found:
            click.echo("the job has taken no checkpoint yet")
        elif checkpoint is None:
            console.print(_list_of(found))
        else:
            _show(found[0], console)


def _list_of(found: list[dict[str, Any]]) -> Table:
    table = _table("id", "kind", "status", "triggered", "took", "written", "state", "acks", "")
    for one in found:
        totals = one["totals"]
        _add(
            table,
            str(one["checkpoint"]),
            one["kind"].lower(),
            _status(one),
            time_text(one["triggered"]).removesuffix(" UTC"),
            duration_text(one["duration_ms"]),
            size_text(totals["checkpointed_bytes"]),
            size_text(totals["state_bytes"]),
            f"{totals['num_acknowledged']} of {totals['num_subtasks']}",
            _note(one),
        )
    return table


def _show(one: dict[str, Any], console: Console) -> None:
    totals = one["totals"]
    console.print(f"{one['kind'].lower()} {one['checkpoint']}: {_status(one)}, {_note(one) or 'aligned'}")
    began = f"triggered {time_text(one['triggered'])} after waiting {duration_text(one['queued_ms'])}"
    console.print(f"{began}, took {duration_text(one['duration_ms'])}")
    sizes = f"{size_text(totals['checkpointed_bytes'])} written, {size_text(totals['state_bytes'])} of state"
    flight = f"{size_text(totals['persisted_bytes'])} of it in flight"
    console.print(f"{sizes}, {flight}, {size_text(totals['processed_bytes'])} read while aligning")
    if one["path"]:
        gone = " (deleted)" if one["discarded"] else ""
        console.print(f"metadata: {one['path']}{gone}", soft_wrap=True)
    console.print()
    console.print(_subtasks_of(one["vertices"]))


def _subtasks_of(vertices: list[dict[str, Any]]) -> Table:
    table = _table(
        "vertex",
        "subtask",
        "took",
        "start delay",
        "aligned",
        "frozen",
        "written in",
        "written",
        "state",
        "in flight",
        "",
    )
    for vertex in vertices:
        name = vertex["vertex"]
        for subtask in vertex["subtasks"]:
            _add(table, name, str(subtask["subtask"]), *_numbers(subtask))
            name = ""
    return table


def _numbers(subtask: dict[str, Any]) -> list[str]:
    if subtask["acknowledged"] is None:
        return ["", "", "", "", "", "", "", "", "no answer"]
    note = "too late" if subtask["aborted"] else "unaligned" if subtask["unaligned"] else ""
    return [
        *(
            duration_text(subtask[name])
            for name in ("duration_ms", "start_delay_ms", "alignment_ms", "sync_ms", "async_ms")
        ),
        *(size_text(subtask[name]) for name in ("checkpointed_bytes", "state_bytes", "persisted_bytes")),
        note,
    ]


def _status(one: dict[str, Any]) -> str:
    return str(one["status"]).lower().replace("_", " ")


def _note(one: dict[str, Any]) -> str:
    if one["status"] == "FAILED":
        reason = str(one["failure"] or "").lower().replace("_", " ")
        return ": ".join(text for text in (reason, one["failure_text"]) if text)
    return "unaligned" if one["totals"]["unaligned"] else ""


def _table(*titles: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in titles:
        table.add_column(title, justify="right" if title in _RIGHT else "left")
    return table


def _add(table: Table, *cells: str) -> None:
    """Add a row. The last cell is a text and may take several lines; no other cell is broken into lines."""
    table.add_row(*(cell.replace(" ", "\N{NO-BREAK SPACE}") for cell in cells[:-1]), cells[-1])
