"""Streams beside the main stream of a step: the parts of a split, and the side outputs of functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Literal, Self, TypeVar

from penstock.api.boundary import at_user_line
from penstock.api.expressions import ExpressionLike, compile_condition
from penstock.api.join_steps import LATE_OF_RIGHT
from penstock.api.pattern_steps import TIMED_OUT
from penstock.api.steps import LATE, SplitStep
from penstock.api.streams.stream_state import StreamState, check_side_name
from penstock.core.errors import UsageError

Kind = TypeVar("Kind")

REST = "rest"
"""The name of the part with the records that are in no other part."""


class _NoSuchKey(UsageError, KeyError):
    """What `get` of a mapping looks for."""

    def __init__(self, message: str, hint: str | None) -> None:
        super().__init__(message, hint=hint)


class _NoSuchAttribute(UsageError, AttributeError):
    """What `hasattr` and `getattr` look for."""

    def __init__(self, message: str, hint: str | None) -> None:
        super().__init__(message, hint=hint)


class Parts(Mapping[str, Kind]):
    """The streams that `Stream.split` makes, by attribute (`parts.errors`) and by index (`parts["errors"]`). The part
    `rest` has the records that are in no other part."""

    def __init__(self, streams: dict[str, Kind]) -> None:
        self._streams = streams

    def __getitem__(self, name: str) -> Kind:
        """The part of that name."""
        found = self._streams.get(name)
        if found is None:
            raise _NoSuchKey(*self._unknown(name))
        return found

    def __getattr__(self, name: str) -> Kind:
        """The part of that name."""
        if name.startswith("_"):
            # Python and notebooks look for such attributes in every object.
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        if name not in self._streams:
            raise _NoSuchAttribute(*self._unknown(name))
        return self._streams[name]

    def _unknown(self, name: str) -> tuple[str, str | None]:
        text = f"split: there is no part {name!r}; there are {', '.join(self._streams)}"
        return text, _likely(str(name), self._streams)

    def __iter__(self) -> Iterator[str]:
        return iter(self._streams)

    def __len__(self) -> int:
        return len(self._streams)

    def __contains__(self, name: object) -> bool:
        return name in self._streams

    def __dir__(self) -> list[str]:
        return list(self._streams)

    def __repr__(self) -> str:
        return f"<Parts {', '.join(self._streams)}>"


@at_user_line
class HasSides:
    """The methods of a stream that make several streams of one step."""

    def __init__(self, state: StreamState) -> None:
        self._state = state

    def split(self, **conditions: ExpressionLike) -> Parts[Self]:
        """Several streams, one for each condition: each record goes to the part of the **first** condition that is
        true.

        The part `rest` has the records for which no condition is true (false or null, as in `where`). So every record
        is in exactly one part. For parts that overlap, call `where` several times. All parts have the columns and the
        event time of this stream. The records of a part that nothing reads are dropped.

        >>> import penstock as ps
        >>> from penstock.testing import run
        >>> errors, slow, rest = ps.collect(), ps.collect(), ps.collect()
        >>> def program(env):
        ...     rows = [{"level": "ERROR", "ms": 5000}, {"level": "INFO", "ms": 2000}, {"level": "INFO", "ms": 3}]
        ...     parts = env.from_iterable(rows).split(errors="level = 'ERROR'", slow="ms > 1000")
        ...     parts.errors.write(errors)
        ...     parts["slow"].write(slow)
        ...     parts.rest.write(rest)
        >>> _ = run(program)
        >>> [[row["ms"] for row in part.rows] for part in (errors, slow, rest)]
        [[5000], [2000], [3]]

        To name the step, call `.name(...)` on one of the parts.
        """
        if not conditions:
            raise UsageError("split needs at least one condition", hint="for example errors=\"level = 'ERROR'\"")
        for name in conditions:
            if name == REST:
                raise UsageError(
                    "split: rest is the part with the records that are in no other part, and takes no condition",
                    hint="give this part another name",
                )
            check_side_name(name, "split")
            if hasattr(Parts, name):
                raise UsageError(
                    f"split: the parts have a method {name!r}, which a part of that name would hide",
                    hint="give this part another name",
                )
        state = self._state
        compiled = tuple(
            (name, compile_condition(condition, state.schema, argument=f"condition {name!r}"))
            for name, condition in conditions.items()
        )
        step = SplitStep(conditions=compiled, schema=state.schema)
        number = state.ledger.add(step, kind="split", inputs=state.input())
        behind = StreamState(
            ledger=state.ledger,
            last_step=number,
            schema=state.schema,
            time_column=state.time_column,
            time_offset_us=state.time_offset_us,
            time_lost=state.time_lost,
        )
        sides = {name: type(self)(replace(behind, side=name)) for name in conditions}
        return Parts({**sides, REST: type(self)(behind)})

    def side(self, name: str) -> Self:
        """The records that the function of this stream's step emits to the side output `name`. The step declares its
        side outputs where the step is made: `process(function, schema=..., sides={"alerts": "user string, n bigint"})`.

        If the side output has the column of the event time, the stream has event time.

        >>> import penstock as ps
        >>> from penstock.testing import run
        >>> class Check(ps.ProcessFunction):
        ...     def on_row(self, row, context):
        ...         if row["n"] < 0:
        ...             context.emit("bad", {"n": row["n"], "why": "negative"})
        ...         else:
        ...             return row
        >>> def program(env):
        ...     numbers = env.from_iterable([{"n": 1}, {"n": -1}])
        ...     checked = numbers.process(Check(), schema="n bigint", sides={"bad": "n bigint, why string"})
        ...     checked.side("bad").write(ps.collect())
        >>> run(program)
        [{'n': -1, 'why': 'negative'}]
        """
        own = (LATE, LATE_OF_RIGHT, TIMED_OUT)
        sides = {each: state for each, state in self._state.sides.items() if each not in own}
        if name in sides:
            return type(self)(sides[name])
        step = self._state.ledger.step(self._state.last_step)
        if sides:
            raise UsageError(
                f"side: the step {step} has no side output {name!r}; there are {', '.join(sides)}",
                hint=_likely(str(name), sides),
            )
        path = self._state.ledger.path_to(self._state.last_step)
        owner = next((each for each in reversed(path) if name in getattr(each.step, "sides", ())), None)
        raise UsageError(
            f"side: the step {step} declares no side outputs",
            hint=f"the side output {name!r} is declared by {owner}: call side on the stream of that step"
            if owner is not None and owner is not step
            else f'declare the side output where the step is made: sides={{"{name}": "<columns>"}}',
        )

    def timed_out(self) -> Self:
        """The partial matches of a pattern whose time was over before they were a match: with the columns of matches.
        Parts that had taken no record are null, or empty arrays. `match_time` is when the time was over.

        >>> import penstock as ps
        >>> from penstock.testing import run
        >>> def program(env):
        ...     orders = env.from_iterable([("a", 1, 0), ("b", 1, 3), ("a", 2, 50)], schema="id string, n int, s int")
        ...     timed = orders.with_columns(ts="timestamp_seconds(s)").watermark("ts")
        ...     both = ps.pattern("first", where="n = 1").followed_by("second", where="n = 2").within("1 min")
        ...     timed.key_by("id").match(both).timed_out().select("id", "first.s").write(ps.collect())
        >>> run(program)
        [{'id': 'b', 's': 3}]
        """
        found = self._state.sides.get(TIMED_OUT)
        if found is not None:
            return type(self)(found)
        raise UsageError(
            f"timed_out: the step {self._state.ledger.step(self._state.last_step)} looks for no pattern",
            hint="call timed_out on the stream that match returns, before any other step",
        )

    def late(self, *, of: Literal["left", "right"] = "left") -> Self:
        """The records that came too late for the step of this stream, with all the columns that they had before the
        step. Each late record comes out once, and is not counted as dropped.

        * Behind a window: the records whose windows had all been emitted when they came, and that joined no open
          session. The results of the windows are the same as without `late`. Records are not combined before they are
          sent to the step, which costs speed.
        * Behind a function: the records whose event time was not after the watermark. The function does **not** get
          these records: without `late` the function gets all records. Behind a function over two keyed streams
          these are the records of the left stream, or with `of="right"` of the right stream.
        * Behind a join of two streams: the records of the left stream, or with `of="right"` of the right stream, whose
          event time was not after the watermark.

        Late records are behind the watermark, so the stream has no event time until it is given a watermark of its own:
        `.late().watermark("ts", delay="1h")`.

        >>> from datetime import datetime
        >>> import penstock as ps
        >>> from penstock.testing import pause, run, scripted
        >>> early, later = ({"k": "a", "ts": datetime(2026, 1, day)} for day in (1, 9))
        >>> clicks = scripted([early, later, pause(100), early], schema="k string, ts timestamp")
        >>> def program(env):
        ...     counts = env.read(clicks).watermark("ts").key_by("k").window(ps.tumbling("1d")).aggregate(n=ps.count())
        ...     counts.late().select("k", day="day(ts)").write(ps.collect())
        >>> run(program)
        [{'k': 'a', 'day': 1}]
        """
        if of not in ("left", "right"):
            raise UsageError(f"late: of is {of!r}; a join has a left stream and a right stream")
        found = self._state.sides.get(LATE if of == "left" else LATE_OF_RIGHT)
        if found is not None:
            return type(self)(found)
        step = self._state.ledger.step(self._state.last_step)
        raise UsageError(
            f"late: the step {step} does not know which records are late",
            hint="call late on the stream of a window, of a join of two streams, or of a function behind a watermark"
            if of == "left"
            else "only a join of two streams and a function over two keyed streams have late records of a right stream",
        )


def _likely(name: str, names: Mapping[str, object]) -> str | None:
    near = get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else None
