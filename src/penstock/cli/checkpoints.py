"""`penstock checkpoints`: the checkpoints of a running job, and the part of every subtask in one checkpoint."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.cli.reaching import Jobs, reaching_jobs
from penstock.core.slowness import Phase
from penstock.core.view_texts import duration_text, size_text, time_text
from penstock.terminal.plain_text import plain

LEAST_WIDTH = 112
"""Tables are at least this wide. A narrower terminal breaks the lines, which is better than cutting cells."""

_RIGHT = ("took", "written", "state", "acks", "start delay", "aligned", "frozen", "written in", "in flight")


@click.command("checkpoints")
@click.argument("job")
@click.argument("checkpoint", type=click.IntRange(min=1), required=False, metavar="[ID]")
@click.option("--timeline", is_flag=True, help="Show where the time went, one bar per subtask, the slowest first.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as one line of JSON.")
@reaching_jobs
def checkpoints(*, jobs: Jobs, job: str, checkpoint: int | None, timeline: bool, as_json: bool) -> None:
    """Show the checkpoints of a running JOB; or, if an ID is given, that checkpoint with all subtasks.

    With --timeline and no ID, the newest checkpoint that has ended is shown.
    """
    # Without markup: an error text may have brackets, which would be read as colours.
    console = Console(markup=False, highlight=False, width=max(Console().width, LEAST_WIDTH))
    found_job = jobs.find(job)
    found = jobs.call(found_job, "checkpoints", checkpoint=checkpoint)["checkpoints"]
    if timeline and checkpoint is None and found:
        newest = next((one for one in found if one["status"] != "IN_PROGRESS"), found[0])
        # A driver elsewhere gives the subtasks of one checkpoint only.
        found = jobs.call(found_job, "checkpoints", checkpoint=newest["checkpoint"])["checkpoints"]
    if as_json:
        click.echo(json.dumps(found))
    elif not found:
        click.echo("the job has taken no checkpoint yet")
    elif timeline:
        _show_timeline(found[0], console)
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
    console.print(_headline(one))
    began = f"triggered {time_text(one['triggered'])} after waiting {duration_text(one['queued_ms'])}"
    console.print(f"{began}, took {duration_text(one['duration_ms'])}")
    sizes = f"{size_text(totals['checkpointed_bytes'])} written, {size_text(totals['state_bytes'])} of state"
    flight = f"{size_text(totals['persisted_bytes'])} of it in flight"
    console.print(f"{sizes}, {flight}, {size_text(totals['processed_bytes'])} read while aligning")
    if one["path"]:
        gone = " (deleted)" if one["discarded"] else ""
        console.print(f"metadata: {one['path']}{gone}", soft_wrap=True)
    console.print(plain(one["diagnosis"]))
    console.print()
    console.print(_subtasks_of(one["vertices"]))


STYLES = {
    Phase.DELAY.value: ("░", "bright_black"),
    Phase.ALIGNMENT.value: ("▒", "yellow"),
    Phase.SYNC.value: ("█", "red"),
    Phase.ASYNC.value: ("▓", "blue"),
    Phase.ANSWER.value: ("·", "magenta"),
}
"""The bar of each phase: its character, so that the phases differ without colours, too, and its colour."""
MOST_BARS = 40


def _show_timeline(one: dict[str, Any], console: Console) -> None:
    console.print(_headline(one))
    console.print(plain(one["diagnosis"]))
    console.print()
    bars = one["timeline"]
    shown = bars[:MOST_BARS]
    width = max((len(_name(bar)) for bar in shown), default=0)
    room = max(10, console.width - width - 14)
    longest = max((sum(bar["phases"].values()) for bar in shown), default=0) or 1
    for bar in shown:
        drawn = Text(f"{_name(bar):<{width}}  ")
        drawn.append_text(_bar(bar, room / longest))
        console.print(drawn, no_wrap=True, crop=False)
    if len(bars) > len(shown):
        console.print(f"{len(bars) - len(shown)} more subtasks were quicker")
    console.print(_legend())


def _name(bar: dict[str, Any]) -> str:
    return plain(f"{bar['vertex']}[{bar['subtask']}]")


def _bar(bar: dict[str, Any], cells_per_ms: float) -> Text:
    if bar["is_missing"]:
        return Text("no answer", style="red")
    drawn, done, ends = Text(), 0, 0.0
    for name, took in bar["phases"].items():
        ends += took * cells_per_ms
        cells = round(ends) - done
        done += cells
        character, style = STYLES[name]
        drawn.append(character * cells, style=style)
    return drawn.append(f" {duration_text(bar['total_ms'])}")


def _legend() -> Text:
    legend = Text()
    for name, (character, style) in STYLES.items():
        legend.append(character * 2, style=style).append(f" {name}   ")
    return legend


def _headline(one: dict[str, Any]) -> str:
    return f"{one['kind'].lower()} {one['checkpoint']}: {_status(one)}, {_note(one) or 'aligned'}"


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
