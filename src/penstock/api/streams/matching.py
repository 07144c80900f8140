"""How the step that looks for the matches of a pattern is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from penstock.api.expressions import ExpressionLike
from penstock.api.pattern_conditions import MOST_CONDITIONS, Names, read_condition
from penstock.api.pattern_steps import (
    MATCH_TIME,
    TIMED_OUT,
    Contiguity,
    PatternCondition,
    PatternShape,
    PatternStep,
    Refusal,
    Skip,
    StepShape,
)
from penstock.api.patterns import Part, Pattern
from penstock.api.steps import LATE, LateRecords
from penstock.api.streams.stream_state import StreamState
from penstock.api.window_schema import check_key_types
from penstock.core.errors import UsageError


def matches_of_keys(state: StreamState, keys: tuple[str, ...], pattern: Pattern, *, name: str | None) -> StreamState:
    """What is known about the matches of a pattern. Adds the step."""
    if not isinstance(pattern, Pattern):
        raise UsageError(f"match takes a pattern, not {pattern!r}", hint='for example ps.pattern("a", where="n > 1")')
    state.refuse_changelog("match")
    late = state.late_records
    if late is None:
        times = [field.name for field in state.schema if pa.types.is_timestamp(field.type)]
        raise UsageError(
            "match needs event time, since a pattern is about the order of records, and this stream has none"
            + (f": {state.time_lost}" if state.time_lost else ""),
            hint=f'add .watermark("{times[0] if times else "ts"}", delay="5s") before key_by',
        )
    check_key_types(state.schema, keys)
    step = pattern_step(pattern, keys, late)
    ledger = state.ledger
    number = ledger.add(
        step,
        kind="match",
        label="-".join(("match", *keys)),
        inputs=(state.input_by_key(keys),),
        name=name,
    )
    behind = StreamState(ledger=ledger, last_step=number, schema=step.schema, time_column=MATCH_TIME)
    sides = {LATE: state.late_behind(number), TIMED_OUT: replace(behind, side=TIMED_OUT)}
    return replace(behind, sides=sides)


def pattern_step(pattern: Pattern, keys: tuple[str, ...], late: LateRecords) -> PatternStep:
    """The step that looks for the matches of a pattern. Raises `UsageError`."""
    _check(pattern)
    return _Reader(pattern, keys, late).step()


def _check(pattern: Pattern) -> None:
    """Raise `UsageError` for what is wrong with the pattern as a whole, whatever the records are."""
    taking = [part for part in pattern.parts if not part.is_refused]
    last, time = pattern.parts[-1], pattern.time
    if all(part.is_optional for part in taking):
        raise UsageError(
            f"match: all parts of the pattern are optional ({', '.join(part.shown for part in taking)}), so nothing "
            "would be a match",
            hint="a match needs at least one record: leave out one .optional()",
        )
    if last.is_refused and last.contiguity is Contiguity.NEXT:
        raise UsageError(
            f"match: the pattern ends with not_next {last.shown!r}, and a next record may never come",
            hint=f'write .not_followed_by("{last.shown}", ..., within="...") to wait for a time',
        )
    for part in pattern.parts[:-1]:
        if part.is_refused and part.gap_us is not None:
            raise UsageError(
                f"match: not_followed_by {part.shown!r} has a within of its own, and another part follows",
                hint="within belongs to the part that follows, or to a not_followed_by at the end",
            )
    if last.is_refused and last.gap_us is None and (time is None or time.time_us is None):
        raise UsageError(
            f"match: the pattern ends with not_followed_by {last.shown!r}, and nothing says for how long",
            hint='add .within("...") to the pattern, or within="..." to not_followed_by',
        )
    is_endless = (time is None or time.time_us is None) and not _ends_by_itself(pattern)
    if is_endless and Skip(kind=pattern.skip).waits:
        raise UsageError(
            f"match: with {pattern.skip.value} a match waits until every partial match that began before it is over, "
            "and nothing says when that is",
            hint='add .within("10 min") to the pattern',
        )
    if is_endless and time is None:
        raise UsageError(
            "match: nothing says how long a match may take, so partial matches would be kept for ever",
            hint='add .within("10 min") to the pattern; or .within(None) to keep them for ever',
        )


def _ends_by_itself(pattern: Pattern) -> bool:
    """Whether every part has a time of its own, so that no partial match is kept for ever."""
    first, *others = pattern.parts
    last = pattern.parts[-1]
    timed = (part.gap_us is not None or (part.is_refused and part is not last) for part in others)
    return (first.gap_us is not None or first.most == 1) and all(timed)


@dataclass(frozen=True)
class _Asked:
    """A condition that is numbered."""

    given: ExpressionLike | None
    names: Names
    argument: str


class _Reader:
    """Numbers the names and conditions of a pattern."""

    def __init__(self, pattern: Pattern, keys: tuple[str, ...], late: LateRecords) -> None:
        self._pattern = pattern
        self._keys = keys
        self._late = late
        self._numbers: dict[str, int] = {}
        self._conditions: list[_Asked] = []
        taking = [part for part in pattern.parts if not part.is_refused]
        for name in (name for part in taking for name in part.names):
            self._check_name(name)
            self._numbers[name] = len(self._numbers)

    def _check_name(self, name: str) -> None:
        if name == MATCH_TIME:
            raise UsageError(
                f"match: {name} is the column with the time of a match, and cannot be the name of a part",
                hint="give this part another name",
            )
        if name in self._late.schema.names:
            raise UsageError(
                f"match: the records have a column {name!r}, so {name!r} cannot be the name of a part of the pattern",
                hint="give this part another name",
            )

    def step(self) -> PatternStep:
        """The step with its conditions."""
        pattern, steps, refused, seen = self._pattern, list[StepShape](), list[Refusal](), list[str]()
        for part in pattern.parts:
            if part.is_refused:
                number = self._number(part.alternatives[0][1], seen, f"{part.word} {part.shown!r}")
                refused.append(Refusal(condition=number, only_next=part.contiguity is Contiguity.NEXT))
                continue
            # The condition of a repeated part may refer to the records that the part took before.
            visible = [*seen, *part.names] if part.most != 1 else seen
            steps.append(self._shape(part, visible, tuple(refused)))
            seen.extend(part.names)
            refused = []
        if len(self._conditions) > MOST_CONDITIONS:
            raise UsageError(
                f"match: the pattern has {len(self._conditions)} conditions; {MOST_CONDITIONS} are possible",
                hint="make two patterns, the second over the matches of the first",
            )
        last = pattern.parts[-1]
        shape = PatternShape(
            steps=tuple(steps),
            refused_at_end=tuple(refused),
            end_gap_us=last.gap_us if last.is_refused else None,
            within_us=None if pattern.time is None else pattern.time.time_us,
            skip=Skip(kind=pattern.skip, name=None if pattern.skip_name is None else self._numbers[pattern.skip_name]),
        )
        conditions = tuple(self._read(each) for each in self._conditions)
        return PatternStep(
            keys=self._keys,
            late=self._late,
            shape=shape,
            names=tuple(self._numbers),
            conditions=conditions,
            schema=self._schema(shape),
            text=pattern.steps_text,
            shown=str(pattern),
        )

    def _shape(self, part: Part, seen: Sequence[str], refused: tuple[Refusal, ...]) -> StepShape:
        conditions = tuple(self._number(given, seen, f"where of {name!r}") for name, given in part.alternatives)
        until = None if part.until is None else self._number(part.until, seen, f"until of {part.shown!r}")
        return StepShape(
            names=tuple(self._numbers[name] for name in part.names),
            conditions=conditions,
            contiguity=part.contiguity,
            refused=refused,
            least=part.least,
            most=part.most,
            is_optional=part.is_optional,
            is_greedy=part.is_greedy,
            inner=part.inner,
            until=until,
            gap_us=part.gap_us,
        )

    def _number(self, given: ExpressionLike | None, seen: Sequence[str], argument: str) -> int:
        refused = tuple(name for each in self._pattern.parts if each.is_refused for name in each.names)
        later = tuple(name for name in self._numbers if name not in seen)
        names = Names(earlier={name: self._numbers[name] for name in seen}, later=later, refused=refused)
        self._conditions.append(_Asked(given, names, f"match: {argument}"))
        return len(self._conditions) - 1

    def _read(self, asked: _Asked) -> PatternCondition:
        return read_condition(asked.given, self._late.schema, asked.names, argument=asked.argument)

    def _schema(self, shape: PatternShape) -> pa.Schema:
        records = self._late.schema
        record: pa.DataType = pa.struct(list(records))
        fields: list[pa.Field[Any]] = [records.field(key) for key in self._keys]
        repeated = {name for step in shape.steps if step.is_repeated for name in step.names}
        fields += [
            pa.field(name, pa.list_(record) if number in repeated else record) for name, number in self._numbers.items()
        ]
        return pa.schema([*fields, pa.field(MATCH_TIME, records.field(self._late.time_column).type)])
