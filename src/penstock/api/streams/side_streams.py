"""Streams beside the main stream of a step: the parts of a split, and the side outputs of functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING

from penstock.api.boundary import at_user_line
from penstock.api.expressions import ExpressionLike, compile_condition
from penstock.api.steps import SplitStep
from penstock.api.streams.stream_state import StreamState
from penstock.core.errors import UsageError
from penstock.plan.graph import Partitioning

if TYPE_CHECKING:
    from penstock.api.streams.data_stream import Stream

REST = "rest"
"""The name of the part with the records that are in no other part."""


class Parts(Mapping[str, "Stream"]):
    """The streams that `Stream.split` makes, by attribute (`parts.errors`) and by index (`parts["errors"]`). The part
    `rest` has the records that are in no other part."""

    def __init__(self, streams: dict[str, Stream]) -> None:
        self._streams = streams

    def __getitem__(self, name: str) -> Stream:
        """The part of that name."""
        found = self._streams.get(name)
        if found is None:
            raise UsageError(
                f"split: there is no part {name!r}; there are {', '.join(self._streams)}",
                hint=_likely(str(name), self._streams),
            )
        return found

    def __getattr__(self, name: str) -> Stream:
        """The part of that name."""
        if name.startswith("_"):
            # Python and notebooks look for such attributes in every object.
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self[name]

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

    _state: StreamState

    def split(self, **conditions: ExpressionLike) -> Parts:
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
            _check_side_name(name, "split")
        state = self._state
        compiled = tuple(
            (name, compile_condition(condition, state.schema, argument=f"condition {name!r}"))
            for name, condition in conditions.items()
        )
        step = SplitStep(conditions=compiled, schema=state.schema)
        number = state.ledger.add(step, kind="split", inputs=state.input())
        behind = replace(state, last_step=number, side=None, partitioning=Partitioning.FORWARD, partition_keys=())
        sides = {name: _stream(replace(behind, side=name)) for name in conditions}
        return Parts({**sides, REST: _stream(behind)})


def _stream(state: StreamState) -> Stream:
    # Not imported above: the module of streams imports this module.
    from penstock.api.streams.data_stream import Stream

    return Stream(state)


def _check_side_name(name: object, argument: str) -> None:
    if not isinstance(name, str) or not name.isidentifier() or name.startswith("_"):
        raise UsageError(
            f"{argument}: {name!r} cannot be the name of a side output",
            hint="give a name of letters, digits and _ that begins with a letter",
        )


def _likely(name: str, names: Mapping[str, object]) -> str | None:
    near = get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else None
