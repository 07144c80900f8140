"""What a pattern is made of, as plain descriptions for the step that looks for its matches.

A *match* is a list of records of one key, in the order of event time, each *taken* by a step of the pattern. A step may
have several *alternatives*, each with a name and a condition, and takes a record by the first alternative that is true.
Names and conditions are numbered. For a record, the numbers of the conditions that are true are the bits of a whole
number, its *truths*.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.api.lateness import LateRecords
from penstock.core.graph import DeclaredState

if TYPE_CHECKING:
    # Every slot imports this module, and most slots start sooner without Polars.
    import polars as pl

TIMED_OUT = "timed_out()"
"""The name of the side output with the partial matches that ran out of time. No name that a user gives is equal to
it."""

MATCH_TIME = "match_time"
"""The column with the event time at which a match was certain."""

WAITING = "waiting"
"""The state with the records that event time has not come to, by their times."""

MATCHES = "matches"
"""The state with the partial matches of a key."""


class Contiguity(Enum):
    """Which records may lie between a record and the record that is taken before it. The value is the word of the
    user."""

    NEXT = "next"
    """No record."""
    FOLLOWED_BY = "followed_by"
    """Records that the step does not take."""
    FOLLOWED_BY_ANY = "followed_by_any"
    """All records."""


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A condition that no record may fulfil between two records of a match, the later one included."""

    condition: int
    only_next: bool
    """Whether only the record directly behind the earlier one is meant."""


@dataclass(frozen=True, kw_only=True)
class StepShape:
    """A step of a pattern that takes records."""

    names: tuple[int, ...]
    """The number of the name of each alternative."""
    conditions: tuple[int, ...]
    """The number of the condition of each alternative."""
    contiguity: Contiguity = Contiguity.FOLLOWED_BY
    """How the first record of the step follows the record before. Nothing comes before the first step."""
    refused: tuple[Refusal, ...] = ()
    """What must not lie between the step before and this step."""
    least: int = 1
    most: int | None = 1
    """None: any number of records."""
    is_optional: bool = False
    is_greedy: bool = False
    """Whether later steps take no record that this step could take."""
    inner: Contiguity = Contiguity.FOLLOWED_BY
    """How the records of the step follow each other."""
    until: int | None = None
    """The number of the condition that ends the step."""
    gap_us: int | None = None
    """Each record of the step comes less than this after the record that is taken before it."""

    @property
    def is_repeated(self) -> bool:
        """Whether the step may take several records."""
        return self.most != 1


class SkipKind(Enum):
    """Which partial matches are given up when a match is found."""

    NONE = "no skip"
    TO_NEXT = "skip to next"
    PAST_LAST = "skip past last"
    TO_FIRST = "skip to first"
    TO_LAST = "skip to last"


@dataclass(frozen=True, kw_only=True)
class Skip:
    """What is given up when a match is found."""

    kind: SkipKind = SkipKind.NONE
    name: int | None = None
    """The number of the name that is skipped to."""

    @property
    def waits(self) -> bool:
        """Whether a match waits for the partial matches that began before it: whether it is given up depends on
        them."""
        return self.kind in (SkipKind.PAST_LAST, SkipKind.TO_FIRST, SkipKind.TO_LAST)


@dataclass(frozen=True, kw_only=True)
class PatternShape:
    """The steps of a pattern, and what holds for a match as a whole."""

    steps: tuple[StepShape, ...]
    refused_at_end: tuple[Refusal, ...] = ()
    """What must not follow the last record, until time is over."""
    end_gap_us: int | None = None
    """For how long behind the last record nothing of this may follow; None: until `within_us` is over."""
    within_us: int | None = None
    """The last record comes less than this after the first record."""
    skip: Skip = Skip()

    @property
    def needs_all_records(self) -> bool:
        """Whether records that fulfil no condition matter, because they stand between others."""
        return any(
            Contiguity.NEXT in (step.contiguity, step.inner) or any(each.only_next for each in step.refused)
            for step in self.steps
        )

    @property
    def shortest_us(self) -> int | None:
        """No time runs out sooner than this after a record; None if no time ever runs out."""
        times = (self.within_us, self.end_gap_us, *(step.gap_us for step in self.steps))
        return min((time for time in times if time is not None), default=None)


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A value of the records that a partial match has taken so far by one name."""

    function: str
    """`last`, `first`, `count`, `sum`, `min`, `max` or `avg`."""
    name: int
    column: str | None
    """None if records are counted."""
    label: str
    """The name of the column with the value, beside the columns of the record."""


@dataclass(frozen=True, kw_only=True)
class PatternCondition:
    """A condition of a pattern: both parts must be true."""

    alone: pl.Expr | None
    """The part that follows from the record alone; None: always true."""
    referring: pl.Expr | None = None
    """The part that refers to records taken before; None: always true."""
    references: tuple[Reference, ...] = ()
    columns: tuple[str, ...] = ()
    """The columns of the record that the referring part reads."""
    schema: pa.Schema | None = None
    """The types of these columns and of the references, in this order."""


@dataclass(frozen=True, kw_only=True)
class PatternStep:
    """Matches of a pattern among the records of each key."""

    keys: tuple[str, ...]
    late: LateRecords
    """What tells late records apart. Its schema is that of the records."""
    shape: PatternShape
    names: tuple[str, ...]
    """The name of each number of a name."""
    conditions: tuple[PatternCondition, ...]
    schema: pa.Schema
    """The schema of the results: the keys, a column for each name, `match_time`."""
    text: str
    """The parts of the pattern: what may not change when a program goes on from a snapshot."""
    shown: str
    """The pattern without its conditions, for people."""

    @property
    def sides(self) -> dict[str, pa.Schema]:
        """The schema of each side output. `late()` is the name of late records in all steps."""
        return {TIMED_OUT: self.schema, "late()": self.late.schema}

    @property
    def key_schema(self) -> pa.Schema:
        """The key columns."""
        return pa.schema([pa.field(key, self.late.schema.field(key).type) for key in self.keys])

    @property
    def repeated(self) -> tuple[bool, ...]:
        """For each name, whether several records may be taken by the name."""
        found = [False] * len(self.names)
        for step in self.shape.steps:
            for name in step.names:
                found[name] = step.is_repeated
        return tuple(found)

    @property
    def state_types(self) -> Mapping[str, pa.DataType]:
        """The types of the values of the states."""
        record: pa.DataType = pa.struct(list(self.late.schema))
        waiting = pa.list_(pa.struct([("truths", pa.int64()), ("record", record)]))
        records = pa.list_(pa.struct([("number", pa.int64()), ("time", pa.int64()), ("record", record)]))
        taken = pa.list_(pa.struct([("before", pa.int32()), ("name", pa.int32()), ("record", pa.int32())]))
        partials = pa.list_(pa.struct([("place", pa.int32()), ("open", pa.int64()), ("last", pa.int32())]))
        found = pa.list_(pa.struct([("last", pa.int32())]))
        fields: list[Any] = [
            ("next", pa.int64()),
            ("records", records),
            ("taken", taken),
            ("partials", partials),
            ("found", found),
        ]
        return {WAITING: waiting, MATCHES: pa.struct(fields)}

    @property
    def declared_states(self) -> dict[str, DeclaredState]:
        """What is kept of each key. The conditions and `within` may change when a program goes on from a snapshot; the
        steps may not."""
        columns = ", ".join(f"{field.name}: {field.type}" for field in self.late.schema)
        return {"pattern": DeclaredState(kind="pattern", type=f"{self.text}, columns {columns}")}
