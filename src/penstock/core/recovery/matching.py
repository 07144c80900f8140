"""Whose state is whose: the operators of a snapshot and those of the program that starts from it, by their ids.

    in both                      restored
    in the program only          starts afresh
    in the snapshot only         without state: nothing to do
                                 with state: refused, or left over, or dropped because the user said so

Deliberately not here: what each subtask gets.
"""

from __future__ import annotations

from difflib import SequenceMatcher

import msgspec

from penstock.core.errors import UsageError
from penstock.core.graph import CheckpointGraph, OperatorLabel
from penstock.core.ids import OperatorId
from penstock.core.recovery.metadata import (
    CheckpointMetadata,
    MatchingRules,
    OperatorSnapshot,
    Unmatched,
    described,
)

LEAST_LIKENESS = 0.4
"""Names that are less alike than this are not suggested for one another."""


class Matched(msgspec.Struct, frozen=True, kw_only=True):
    """How the operators of a snapshot and of a program go together; each list in the order of its side."""

    restored: tuple[OperatorId, ...]
    fresh: tuple[OperatorId, ...]
    left_over: tuple[OperatorId, ...]
    dropped: tuple[OperatorId, ...]


def match(metadata: CheckpointMetadata, graph: CheckpointGraph, rules: MatchingRules) -> Matched:
    """Put the two sides together. Raises `UsageError` for state that nobody wants, if the rules say so, and for an
    operator that is to be dropped and does not exist."""
    labels = {o: v.labels.get(o, OperatorLabel()) for v in graph.vertices for o in v.operators}
    dropped = _dropped(metadata, rules.drop)
    wanted = {o: s for o, s in metadata.operators.items() if o not in dropped}
    left_over = tuple(o for o in wanted if o not in labels and _has_state(metadata, o))
    fresh = tuple(o for o in labels if o not in wanted)
    if left_over and rules.unmatched is Unmatched.REFUSE:
        raise _unwanted(metadata, left_over, {o: labels[o] for o in fresh})
    return Matched(restored=tuple(o for o in labels if o in wanted), fresh=fresh, left_over=left_over, dropped=dropped)


def _has_state(metadata: CheckpointMetadata, operator: OperatorId) -> bool:
    return metadata.operators[operator].has_state or operator in metadata.coordinators


def _dropped(metadata: CheckpointMetadata, drop: tuple[str, ...]) -> tuple[OperatorId, ...]:
    """The operators that are meant, by their ids or by the names of their steps."""
    known = metadata.operators
    names = dict.fromkeys((*known, *(s.label.name for s in known.values()), *metadata.hooks))
    unknown = [given for given in drop if given not in names]
    if unknown:
        raise UsageError(
            f"the state of {', '.join(unknown)} is to be dropped, and {metadata.title} has no such step",
            hint=f"it has {', '.join(known)}",
        )
    return tuple(o for o, snapshot in known.items() if o in drop or snapshot.label.name in drop)


def _unwanted(
    metadata: CheckpointMetadata, left_over: tuple[OperatorId, ...], candidates: dict[OperatorId, OperatorLabel]
) -> UsageError:
    texts = []
    for operator in left_over:
        snapshot = metadata.operators[operator]
        like = most_like(snapshot, candidates)
        text = f"{snapshot.title}, {snapshot.size} bytes"
        texts.append(f"{text}, most like the new step {described(like, candidates[like])}" if like else text)
    return UsageError(
        f"{metadata.title} has state of {len(left_over)} steps that the program does not have: {'; '.join(texts)}",
        hint="give the steps the names they had, by name=...; or drop their state, or allow state that nobody wants",
    )


def most_like(snapshot: OperatorSnapshot, candidates: dict[OperatorId, OperatorLabel]) -> OperatorId | None:
    """The candidate that the operator of a snapshot may have become: of its kind, by a name that is like its own."""
    best: tuple[float, OperatorId] | None = None
    for operator, label in candidates.items():
        kinds_known = bool(snapshot.label.kind and label.kind)
        if kinds_known and snapshot.label.kind != label.kind:
            continue
        likeness = max(
            _likeness(snapshot.operator, operator), _likeness(snapshot.label.name or snapshot.operator, label.name)
        )
        # The only new step of the same kind is worth a mention whatever it is called.
        if likeness < LEAST_LIKENESS and not kinds_known:
            continue
        if best is None or likeness > best[0]:
            best = (likeness, operator)
    return None if best is None else best[1]


def _likeness(one: str, other: str) -> float:
    return SequenceMatcher(None, one, other, autojunk=False).ratio()
