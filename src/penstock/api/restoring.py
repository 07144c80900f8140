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
    """A full path, or a URI."""
    claim: Claim
    rules: MatchingRules
    also_in: tuple[str, ...] = ()
    """Checkpoint directories that its files may lie in, besides its own."""
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
    newest retained checkpoint is taken. The parallelism may be another than it had.

    Args:
        path: where it lies. A savepoint may have been moved since it was taken.
        claim: who owns it. `no-claim`: you do; the job copies what it needs with its first checkpoint and deletes
            nothing. `claim`: the job does, and deletes it when a checkpoint of the job has replaced it; a job that
            fails, or ends before its first checkpoint, leaves it as it was. `legacy`: you do, but the job's checkpoints
            go on referring to it, so that it must stay.
        unmatched: what happens if it has state of steps that the program does not have: the start is refused with what
            it might belong to, or the state is ignored.
        drop: names of steps whose state is not to be used; those that the program has start afresh.
        also_in: checkpoint directories that files of a checkpoint may lie in, besides its own: those of jobs whose
            snapshots its job had claimed. Files anywhere else are refused.
        unpickle: with False the start is refused if the snapshot has state that would be unpickled: values of type
            `object`, state of a function that belongs to no key, splits and results of Python Data Sources.

    Unpickling runs what the snapshot says: start only from snapshots of people whom you trust, give `unpickle=False`,
    or have everything sealed (`Checkpointing.seal`).

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
