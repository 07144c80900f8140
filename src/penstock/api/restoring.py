"""How a user says what a job starts from."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from penstock.core.errors import UsageError
from penstock.core.recovery.metadata import Claim, MatchingRules, Unmatched

ChoiceT = TypeVar("ChoiceT", Claim, Unmatched)


@dataclass(frozen=True, kw_only=True)
class Restore:
    """What a job starts from, and how; made by `restore`."""

    path: str
    """The full path or the URI of the snapshot."""
    claim: Claim
    rules: MatchingRules
    also_in: tuple[str, ...] = ()
    """Checkpoint directories that files of the snapshot may lie in, besides the snapshot's own directory."""
    unpickle: bool = True
    """Whether pickled state may be unpickled."""


def restore(
    path: str | os.PathLike[str],
    *,
    claim: Literal["no-claim", "claim", "legacy"] = "no-claim",
    unmatched: Literal["refuse", "ignore"] = "refuse",
    drop: Sequence[str] = (),
    also_in: Sequence[str | os.PathLike[str]] = (),
    unpickle: bool = True,
) -> Restore:
    """Start from the savepoint or checkpoint at `path`: its folder, its `_metadata` file, or the folder of a job, whose
    newest retained checkpoint is taken. The job may have another parallelism than the snapshot.

    >>> import penstock as ps
    >>> start = ps.restore("s3://bucket/saves/counts-17", drop=["totals"])  # for env.run(restore=start)
    >>> start.path, start.rules.drop
    ('s3://bucket/saves/counts-17', ('totals',))

    Args:
        path: where the snapshot lies. A savepoint may have been moved.
        claim: who owns the snapshot. `no-claim`: you do; the job copies what the job needs with its first checkpoint
            and deletes nothing. `claim`: the job does, and deletes the snapshot when a checkpoint of the job has
            replaced the snapshot; a job that fails, or ends before its first checkpoint, leaves the snapshot as it is.
            `legacy`: you do, but the job's checkpoints go on referring to files of the snapshot, so that the snapshot
            must stay.
        unmatched: what happens if the snapshot has state of steps that the program does not have: the start is refused,
            with an error that says which steps the state might belong to, or the state is ignored.
        drop: names of steps whose state is not restored. Steps of these names in the program start without state.
        also_in: checkpoint directories that files of a checkpoint may lie in, besides the checkpoint's own directory:
            the directories of jobs whose snapshots the checkpoint's job had claimed. Files anywhere else are refused.
        unpickle: with False the start is refused if the snapshot has state that would be unpickled: values of type
            `object`, state of a function that belongs to no key, splits and results of Python Data Sources.

    Unpickling runs code that the snapshot contains: start only from snapshots of people whom you trust, give
    `unpickle=False`, or have all files sealed (`Checkpointing.seal`).

    """
    location = os.fspath(path)
    if not isinstance(location, str) or not location.strip():
        raise UsageError(f"path is {path!r}", hint="give the folder of a savepoint or of a checkpoint")
    if isinstance(also_in, str | os.PathLike):
        raise UsageError(f"also_in is {also_in!r}; give a list of directories", hint=f"also_in=[{str(also_in)!r}]")
    if isinstance(drop, str):
        raise UsageError(f"drop is {drop!r}; give a list of names", hint=f"drop=[{drop!r}]")
    return Restore(
        path=_full(location),
        claim=_choice(Claim, "claim", claim),
        rules=MatchingRules(unmatched=_choice(Unmatched, "unmatched", unmatched), drop=tuple(drop)),
        also_in=tuple(_full(os.fspath(directory)) for directory in also_in),
        unpickle=unpickle,
    )


def _full(location: str) -> str:
    return location if "://" in location else str(Path(location).expanduser().absolute())


def _choice(kind: type[ChoiceT], argument: str, given: str) -> ChoiceT:
    for member in kind:
        if member.value == given:
            return member
    values = ", ".join(repr(member.value) for member in kind)
    raise UsageError(f"{argument} is {given!r}; choose one of {values}")
