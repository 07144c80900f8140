"""Which operator of the program gets the state of which operator of the snapshot. Operators are matched by their ids.

    in both                      restored
    in the program only          starts without state
    in the snapshot only         without state: nothing to do
                                 with state: the restore is refused, or the user has allowed to leave the state unread
                                 or to drop the state

Deliberately not here: which state each subtask gets (`operator_state`).
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
from penstock.core.recovery.state_types import check_types
from penstock.core.view_texts import count_of

LEAST_LIKENESS = 0.4
"""If two names are less alike than this, an error text does not suggest one for the other."""


class Matched(msgspec.Struct, frozen=True, kw_only=True):
    """How the operators of a snapshot and of a program match. `restored` and `fresh` are in the order of the program,
    the other lists in the order of the snapshot."""

    restored: tuple[OperatorId, ...]
    fresh: tuple[OperatorId, ...]
    left_over: tuple[OperatorId, ...]
    dropped: tuple[OperatorId, ...]


def match(metadata: CheckpointMetadata, graph: CheckpointGraph, rules: MatchingRules) -> Matched:
    """Match the operators of the snapshot and of the program. Raises `UsageError` for state of an operator that the
    program does not have, if the rules refuse such state; for state whose type differs from the type in the program;
    and for an operator that is to be dropped and does not exist."""
    labels = {o: v.labels.get(o, OperatorLabel()) for v in graph.vertices for o in v.operators}
    dropped = _dropped(metadata, rules.drop)
    wanted = {o: s for o, s in metadata.operators.items() if o not in dropped}
    left_over = tuple(o for o in wanted if o not in labels and _has_state(metadata, o))
    fresh = tuple(o for o in labels if o not in wanted)
    if left_over and rules.unmatched is Unmatched.REFUSE:
        raise _unwanted(metadata, left_over, {o: labels[o] for o in fresh})
    restored = tuple(o for o in labels if o in wanted)
    check_types(metadata, {operator: labels[operator] for operator in restored})
    return Matched(restored=restored, fresh=fresh, left_over=left_over, dropped=dropped)


def _has_state(metadata: CheckpointMetadata, operator: OperatorId) -> bool:
    return metadata.operators[operator].has_state or operator in metadata.coordinators


def _dropped(metadata: CheckpointMetadata, drop: tuple[str, ...]) -> tuple[OperatorId, ...]:
    """The operators whose ids or step names are in `drop`."""
    known = metadata.operators
    names = dict.fromkeys((*known, *(s.label.name for s in known.values()), *metadata.hooks))
    unknown = [given for given in drop if given not in names]
    if unknown:
        raise UsageError(
            f"the state of {', '.join(unknown)} is to be dropped, but {metadata.title} has no such step",
            hint=f"choose from the steps of {metadata.title}: {', '.join(known)}",
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
    steps = count_of(len(left_over), "step")
    return UsageError(
        f"{metadata.title} has state of {steps} that the program does not have: {'; '.join(texts)}",
        hint=_hint(metadata, left_over),
    )


def _hint(metadata: CheckpointMetadata, left_over: tuple[OperatorId, ...]) -> str:
    names = [metadata.operators[operator].label.name or str(operator) for operator in left_over]
    return (
        f"give the steps the names that they had, by name={names[0]!r}; or write the savepoint anew for the new names, "
        f"by ps.read_savepoint(...).renamed({str(left_over[0])!r}, ...); or drop the state, by "
        f"ps.restore(..., drop={names!r}); or leave the state unread, by ps.restore(..., unmatched='ignore')"
    )


def most_like(snapshot: OperatorSnapshot, candidates: dict[OperatorId, OperatorLabel]) -> OperatorId | None:
    """The step of the program that an operator of the snapshot may have become: a step of the same kind whose name is
    most like the operator's name; None if no step is like the operator."""
    best: tuple[float, OperatorId] | None = None
    for operator, label in candidates.items():
        kinds_known = bool(snapshot.label.kind and label.kind)
        if kinds_known and snapshot.label.kind != label.kind:
            continue
        likeness = max(
            _likeness(snapshot.operator, operator), _likeness(snapshot.label.name or snapshot.operator, label.name)
        )
        # A new step of the same kind is worth a mention, whatever its name is.
        if likeness < LEAST_LIKENESS and not kinds_known:
            continue
        if best is None or likeness > best[0]:
            best = (likeness, operator)
    return None if best is None else best[1]


def _likeness(one: str, other: str) -> float:
    return SequenceMatcher(None, one, other, autojunk=False).ratio()
