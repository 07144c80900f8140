"""`penstock state`: the content of a snapshot, the differences of two snapshots, and states as tables. Needs no
Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import click
import pyarrow as pa
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.cli.state_output import cell, json_text, unpickled_columns, write_tables
from penstock.core.errors import StreamError, UsageError
from penstock.core.recovery import roots
from penstock.savepoints.catalog import OperatorInfo, SnapshotData, StateInfo
from penstock.savepoints.comparison import StateDifference, compare
from penstock.savepoints.one_key import groups_of_key, rows_of_key, wanted_key
from penstock.savepoints.tables import ALL_GROUPS
from penstock.sql.python_values import shown_rows
from penstock.terminal.failures import EXIT_FAILED, reported_failures
from penstock.terminal.plain_text import add_plain_row, plain
from penstock.terminal.screen import size_text

WIDTH = 160
"""The width of a table that is not printed to a terminal."""

_AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print one line of JSON, and nothing else.")
_PATH = click.argument("path")
_UNPICKLE = click.option(
    "--unpickle",
    is_flag=True,
    help="Show pickled objects as Python shows them. This runs code that the snapshot names.",
)


@click.group("state")
def state() -> None:
    """Look at the state in a savepoint or checkpoint.

    PATH is a path or a URI: of the folder of a savepoint, of a checkpoint (chk-N), or of a job. If PATH is the folder
    of a job, the newest checkpoint of the job is taken.
    """


@state.command("list")
@_PATH
@_AS_JSON
def list_states(*, path: str, as_json: bool) -> None:
    """Show the operators of the snapshot at PATH and their states."""
    with reported_failures():
        found = SnapshotData(path)
        operators = [(info, *_states_of(found, info)) for info in found.operators()]
        if as_json:
            click.echo(json_text(_plain_list(found, operators)))
            return
        click.echo(plain(_headline(found)))
        console = _console()
        console.print(_operator_table([info for info, _, _ in operators]))
        states = [(info, state) for info, known, _ in operators for state in known]
        if states:
            console.print(_state_table(states))
        for info, _, problem in operators:
            if problem:
                click.echo(plain(f"states of {info.id}: {problem}"))
        for edge in found.edges():
            between = f"{edge.upstream} to {edge.downstream}, {edge.partitioning}"
            amount = f"{edge.batches} batches, {size_text(edge.size_bytes)}"
            click.echo(plain(f"in flight on edge {edge.edge} ({between}): {amount}"))


def _states_of(found: SnapshotData, info: OperatorInfo) -> tuple[Sequence[StateInfo], str]:
    """The states of an operator, and an empty text. If the files of the operator cannot be read: no states, and the
    reason, so that the other operators are shown all the same."""
    try:
        return found.states(info.id), ""
    except StreamError as error:
        return (), error.message


@state.command("show")
@_PATH
@click.argument("operator")
@click.argument("name", metavar="[STATE]", required=False)
@click.option("--key", "keys", multiple=True, help="Show only this key: a value, or COLUMN=VALUE for each key column.")
@click.option("--limit", type=click.IntRange(min=0), default=20, show_default=True, help="How many rows to show.")
@_UNPICKLE
@_AS_JSON
def show(
    *, path: str, operator: str, name: str | None, keys: tuple[str, ...], limit: int, unpickle: bool, as_json: bool
) -> None:
    """Show the rows of a state, or of all states of OPERATOR (its id, or the name of its step)."""
    with reported_failures():
        found = SnapshotData(path)
        chosen = [found.state(operator, name)] if name else list(found.states(operator))
        if keys:
            chosen = [info for info in chosen if info.key_columns] or _no_keys(operator)
        shown: list[dict[str, Any]] = []
        for info in chosen:
            rows = list(_rows(found, operator, info, keys, limit, unpickle=unpickle))
            shown.append({"state": info.name, "kind": info.kind, "rows_in_all": info.rows, "rows": rows})
            if not as_json:
                _show_rows(info, rows, limited=bool(limit <= len(rows) < info.rows and not keys))
        if as_json:
            click.echo(json_text({"operator": found.snapshot_of(operator).operator, "states": shown}))


@state.command("diff")
@click.argument("old")
@click.argument("new")
@click.argument("operator", required=False)
@click.argument("name", metavar="[STATE]", required=False)
@click.option("--limit", type=click.IntRange(min=0), default=10, show_default=True, help="How many keys to name.")
@_AS_JSON
@click.pass_context
def diff(
    context: click.Context, *, old: str, new: str, operator: str | None, name: str | None, limit: int, as_json: bool
) -> None:
    """Show how the snapshot at NEW differs from the snapshot at OLD, key by key.

    Exits with 0 if the snapshots are the same, with 1 if they differ, with 2 if they could not be compared.
    """
    with reported_failures():
        found = compare(SnapshotData(old), SnapshotData(new), operator=operator, state=name, shown=limit)
        differ = any(state.differs for state in found)
        if as_json:
            states = [{**asdict(state), "differs": state.differs} for state in found]
            click.echo(json_text({"same": not differ, "states": states}))
        else:
            for state in found:
                _show_difference(state)
            click.echo(f"the snapshots {'differ' if differ else 'are the same'}: {len(found)} states compared")
    if differ:
        context.exit(EXIT_FAILED)


@state.command("export")
@_PATH
@click.argument("operator")
@click.argument("name", metavar="STATE")
@click.argument("out")
@_UNPICKLE
@_AS_JSON
def export(*, path: str, operator: str, name: str, out: str, unpickle: bool, as_json: bool) -> None:
    """Write all rows of a state to the file OUT, whose name ends in .parquet, .csv or .json (a row per line)."""
    with reported_failures():
        found = SnapshotData(path)
        tables = _tables(found, operator, name, ALL_GROUPS, unpickle=unpickle)
        rows = write_tables(tables, found.schema(operator, name), out)
        click.echo(json_text({"out": out, "rows": rows}) if as_json else f"{rows} rows are in {out}")


# --- rows ------------------------------------------------------------------------------------------------------------


def _tables(
    found: SnapshotData, operator: str, name: str, groups: tuple[int, int], *, unpickle: bool
) -> Iterator[pa.Table]:
    is_raw = found.state(operator, name).is_raw
    for table in found.tables(operator, name, groups):
        yield unpickled_columns(table, found.found_table(operator, name)) if unpickle and not is_raw else table


def _rows(
    found: SnapshotData, operator: str, info: StateInfo, keys: tuple[str, ...], limit: int, *, unpickle: bool
) -> Iterator[dict[str, Any]]:
    left, name, groups = limit, f"{info.kind}:{info.name}", ALL_GROUPS
    wanted: pa.RecordBatch | None = None
    if keys:
        wanted = wanted_key(found.key_schema(operator, name), keys)
        # Only the files that have the key's key group are read.
        groups = groups_of_key(wanted, found.snapshot_of(operator).max_parallelism)
    for table in found.tables(operator, name, groups):
        rows = table if wanted is None else rows_of_key(table, wanted)
        rows = rows.slice(0, left)
        if unpickle and not info.is_raw:
            rows = unpickled_columns(rows, found.found_table(operator, name))
        yield from shown_rows(rows)
        left -= rows.num_rows
        if left <= 0:
            return


def _no_keys(operator: str) -> list[StateInfo]:
    raise UsageError(f"{operator} has no keyed state", hint="leave --key out")


# --- text ------------------------------------------------------------------------------------------------------------


def _console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=WIDTH)


def _new_table(*columns: str, right: Sequence[str] = ()) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(Text(plain(column)), justify="right" if column in right else "left", overflow="fold")
    return table


def _headline(found: SnapshotData) -> str:
    metadata = found.metadata
    return f"{metadata.title} of job {metadata.job} in {roots.shown(found.location)}"


def _operator_table(operators: Sequence[OperatorInfo]) -> Table:
    numbers = ("parallelism", "key groups", "size")
    table = _new_table("operator", "name", "kind", *numbers, "finished", right=numbers)
    for info in operators:
        finished = "yes" if info.finished else ", ".join(map(str, info.finished_subtasks)) or "no"
        sizes = (str(info.parallelism), str(info.max_parallelism), size_text(info.size_bytes))
        add_plain_row(table, info.id, info.name, info.kind, *sizes, finished)
    return table


def _state_table(states: Sequence[tuple[OperatorInfo, StateInfo]]) -> Table:
    table = _new_table("operator", "state", "kind", "type", "key", "rows", "size", right=("rows", "size"))
    for operator, info in states:
        kept = "" if info.ttl_ms is None else f" (ttl {info.ttl_ms} ms)"
        kind, keys = f"{info.kind}{kept}", ", ".join(info.key_columns)
        add_plain_row(
            table, operator.id, info.name, kind, info.type, keys, f"{info.rows:,}", size_text(info.size_bytes)
        )
    return table


def _show_rows(info: StateInfo, rows: Sequence[dict[str, Any]], *, limited: bool) -> None:
    click.echo(plain(f"{info.name} ({info.kind}): {info.rows:,} rows"))
    if rows:
        table = _new_table(*rows[0])
        for row in rows:
            add_plain_row(table, *(cell(value, is_raw=info.is_raw) for value in row.values()))
        _console().print(table)
    if limited:
        click.echo(f"the first {len(rows)} of {info.rows:,} rows; --limit shows more")


def _show_difference(state: StateDifference) -> None:
    counts = f"{state.added:,} added, {state.removed:,} removed, {state.changed:,} changed, {state.same:,} the same"
    click.echo(plain(f"{state.operator} {state.state} ({state.kind}): {state.note or counts}"))
    marks = {"added": "+", "removed": "-", "changed": "~"}
    for one in state.first:
        key = ", ".join(f"{name}={cell(value)}" for name, value in zip(state.identity, one.key, strict=True))
        values = f"{cell(one.old)} -> {cell(one.new)}" if one.change == "changed" else cell(one.new or one.old)
        click.echo(plain(f"  {marks[one.change]} {key}: {values}"))
    left = state.added + state.removed + state.changed - len(state.first)
    if left > 0 and state.first:
        click.echo(f"    and {left:,} more")


def _plain_list(
    found: SnapshotData, operators: Sequence[tuple[OperatorInfo, Sequence[StateInfo], str]]
) -> dict[str, Any]:
    """The output of `list` as plain values. The shape is part of the interface: a field may be added, and no field
    changes."""
    metadata = found.metadata
    return {
        "location": roots.shown(found.location),
        "kind": metadata.kind.name.lower(),
        "job": metadata.job,
        "checkpoint": metadata.checkpoint,
        "triggered_ms": metadata.timestamp,
        "operators": [
            {**asdict(info), "states": [asdict(state) for state in states], "problem": problem or None}
            for info, states, problem in operators
        ],
        "in_flight": [asdict(edge) for edge in found.edges()],
    }
