"""`penstock verify`: whether the snapshots in a checkpoint directory could be restored, and which files no snapshot
refers to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import click
from rich import box
from rich.console import Console
from rich.table import Table

from penstock.core.errors import UsageError
from penstock.core.recovery import layout, roots
from penstock.core.recovery.layout import JobFolder
from penstock.storage.files import FileStore
from penstock.storage.locations import open_store
from penstock.storage.remote import RemoteStore
from penstock.storage.verification import (
    Leftover,
    LeftoverKind,
    Report,
    SnapshotReport,
    verify_checkpoint,
    verify_directory,
    verify_job,
    verify_savepoint,
)
from penstock.terminal.failures import EXIT_FAILED, reported_failures
from penstock.terminal.plain_text import add_plain_row, plain
from penstock.terminal.screen import size_text

SHOWN = 20
"""How many leftover files of a kind are named. Further files are only counted."""
WIDTH = 160
"""The width of a table that is not printed to a terminal."""

_MEANING = {
    LeftoverKind.ORPHAN: "orphans: files that no snapshot refers to, and that no later snapshot will refer to",
    LeftoverKind.UNFINISHED: "unfinished: files that a running job may still need (if no job runs, give --job-ended)",
    LeftoverKind.FOREIGN: "foreign: files that no job writes",
}


class Finding(NamedTuple):
    """A report, and the store that the paths in the report belong to."""

    store: FileStore | RemoteStore
    report: Report


@click.command("verify")
@click.argument("location", metavar="DIRECTORY")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON, and nothing else.")
@click.option("--delete-orphans", is_flag=True, help="Delete files that no snapshot refers to, after asking.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--job-ended", is_flag=True, help="No job runs here: unfinished files are orphans too.")
@click.pass_context
def verify(
    context: click.Context, *, location: str, as_json: bool, delete_orphans: bool, yes: bool, job_ended: bool
) -> None:
    """Read every snapshot in DIRECTORY, and every file that a snapshot refers to.

    DIRECTORY is a path or a URI: of a checkpoint directory, or of the folder of a job, a checkpoint (chk-N) or a
    savepoint. Exits with 0 if every snapshot could be restored, with 1 if not, with 2 if DIRECTORY could not be read.
    """
    if as_json and delete_orphans and not yes:
        raise click.UsageError("with --json no question is asked: give --yes too, or leave --delete-orphans out")
    with reported_failures():
        found = look(location, job_ended=job_ended)
        if not as_json:
            _show(found.report)
        orphans = found.report.of(LeftoverKind.ORPHAN)
        deleted: list[str] = []
        if delete_orphans and orphans and (yes or click.confirm(f"delete {len(orphans)} orphans?")):
            deleted = delete(found.store, orphans)
        if as_json:
            click.echo(json.dumps(as_plain(found, deleted)))
        else:
            click.echo(verdict(found.report, deleted))
    if not found.report.is_fine:
        context.exit(EXIT_FAILED)


def look(location: str, *, job_ended: bool = False) -> Finding:
    """Find out what a directory is, and verify it. Raises `UsageError` if no file of a job is in the directory."""
    store = open_store(location)
    paths, temporary = store.list_files(""), store.list_temporary("")
    parent, name = roots.split(store.location)
    number = layout.checkpoint_number(name)
    if number is not None and paths:
        root, folder = roots.split(parent)
        return Finding(open_store(root), verify_checkpoint(open_store(root), JobFolder(folder), number))
    if layout.METADATA_NAME in paths or (layout.is_savepoint_folder(name) and paths):
        shown = roots.shown(store.location)
        return Finding(store, verify_savepoint(store, shown, temporary=temporary, job_ended=job_ended))
    tops = dict.fromkeys(path.partition("/")[0] for path in paths if "/" in path)
    if any(layout.is_job_folder_with(top) for top in tops):
        whole = open_store(parent)
        halves = [f"{name}/{path}" for path in temporary]
        return Finding(whole, verify_job(whole, JobFolder(name), temporary=halves, job_ended=job_ended))
    report = verify_directory(store, temporary=temporary, job_ended=job_ended)
    if report == Report() and not any(layout.is_job_folder_with(path.split("/")[1]) for path in paths if "/" in path):
        raise UsageError(
            f"no file of a job is in {roots.shown(store.location)}",
            hint="give a checkpoint directory, or the folder of a job, a checkpoint or a savepoint",
        )
    return Finding(store, report)


def delete(store: FileStore | RemoteStore, leftovers: Sequence[Leftover]) -> list[str]:
    """Delete the leftover files. Returns their paths. A folder of which all files are leftovers is deleted as a
    whole."""
    for folder in dict.fromkeys(leftover.folder for leftover in leftovers):
        if folder is not None:
            store.delete_tree(folder)
    for leftover in leftovers:
        if leftover.folder is None and leftover.temporary:
            store.delete_temporary(leftover.path)
        elif leftover.folder is None:
            store.delete(leftover.path)
    return [leftover.path for leftover in leftovers]


def as_plain(found: Finding, deleted: Sequence[str]) -> dict[str, Any]:
    """The report as plain values. The shape is part of the interface: a field may be added, and no field changes."""
    report = found.report
    return {
        "location": roots.shown(found.store.location),
        "fine": report.is_fine,
        "snapshots": [_plain_snapshot(snapshot) for snapshot in report.snapshots],
        "problems": list(report.problems),
        "leftovers": [
            {"path": left.path, "kind": left.kind.value, "temporary": left.temporary} for left in report.leftovers
        ],
        "deleted": list(deleted),
    }


def _plain_snapshot(snapshot: SnapshotReport) -> dict[str, Any]:
    return {
        "location": roots.shown(snapshot.location),
        "standing": snapshot.standing.value,
        "job": snapshot.job,
        "checkpoint": snapshot.checkpoint,
        "kind": snapshot.kind.name.lower() if snapshot.kind is not None else None,
        "triggered_ms": snapshot.triggered,
        "size_bytes": snapshot.size_bytes,
        "files": snapshot.files,
        "operators": snapshot.operators,
        "parallelism": snapshot.parallelism,
        "problems": list(snapshot.problems),
    }


def verdict(report: Report, deleted: Sequence[str] = ()) -> str:
    """The result, in one line."""
    snapshots = len(report.snapshots)
    broken = sum(bool(snapshot.problems) for snapshot in report.snapshots)
    counts = [f"{len(report.of(kind))} {_count_word(kind)}" for kind in LeftoverKind if report.of(kind)]
    more = f"; {', '.join(counts)}" if counts else ""
    gone = f"; {len(deleted)} deleted" if deleted else ""
    if report.is_fine:
        return f"fine: {snapshots} of {snapshots} snapshots could be restored{more}{gone}"
    return f"WRONG: {len(report.all_problems)} problems, in {broken} of {snapshots} snapshots{more}{gone}"


def _count_word(kind: LeftoverKind) -> str:
    return {"orphan": "orphans", "unfinished": "unfinished files", "foreign": "foreign files"}[kind.value]


def _show(report: Report) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=WIDTH)
    if report.snapshots:
        console.print(_table(report.snapshots))
    for problem in report.all_problems:
        click.echo(plain(f"problem: {problem}"))
    for kind in LeftoverKind:
        found = report.of(kind)
        if found:
            click.echo(_MEANING[kind])
        for leftover in found[:SHOWN]:
            click.echo(plain(f"  {leftover.path}{' (temporary)' if leftover.temporary else ''}"))
        if len(found) > SHOWN:
            click.echo(f"  and {len(found) - SHOWN} more")
        for folder in dict.fromkeys(leftover.folder for leftover in found if leftover.folder is not None):
            if layout.is_savepoint_folder(folder.rpartition("/")[2]):
                what = "is a savepoint without metadata: the savepoint is under way, or will never be complete"
                click.echo(plain(f"  {folder} {what}"))


def _table(snapshots: Sequence[SnapshotReport]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("snapshot", "standing", "kind", "triggered", "size", "files", "operators", "parallelism", ""):
        right = name in ("size", "files", "operators", "parallelism")
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for snapshot in snapshots:
        add_plain_row(
            table,
            roots.shown(snapshot.location),
            snapshot.standing.value,
            snapshot.kind.value if snapshot.kind is not None else "-",
            _moment(snapshot.triggered),
            size_text(snapshot.size_bytes) if snapshot.size_bytes is not None else "-",
            *("-" if value is None else str(value) for value in (snapshot.files, snapshot.operators)),
            "-" if snapshot.parallelism is None else str(snapshot.parallelism),
            "WRONG" if snapshot.problems else "ok",
        )
    return table


def _moment(at_ms: int | None) -> str:
    if at_ms is None:
        return "-"
    try:
        return datetime.fromtimestamp(at_ms / 1_000, tz=UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return f"{at_ms} ms"
