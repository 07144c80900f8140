"""Functions with state: classes whose methods are called row by row, by key.

    class Visits(ps.KeyedFunction):
        seen = ps.value_state("seen", "bigint", default=0)

        def on_row(self, row, context):
            self.seen.set(self.seen.get() + 1)
            context.timers.at_event_time(row["ts"] + timedelta(minutes=1))
            yield {"page": context.key, "n": self.seen.get()}

        def on_timer(self, timer, context):
            self.seen.clear()

    visits.key_by("page").process(Visits(), schema="page string, n bigint")

A method returns the rows it makes: one dict, an iterable of dicts (so the method may be a generator), or None. Rows for
side outputs go to `context.emit`. Every
subtask has a function object of its own, unpickled from the object that `process` was given. Values that must survive a
failure belong into declared state (`penstock.api.state_declarations`), not into attributes.

**Time.** `on_row` is called for every row, with or without an event time, on time or late. A row is late if its event
time is not after `context.watermark`. An event-time timer fires when the watermark reaches the time of the timer. An
event-time timer that is set for a time at or before the watermark fires when the rows of the batch have been handled.
Timers fire in the order of their times, and timers of the same time in the order of their keys. When all data has been
seen, event time goes to its end: every event-time timer fires. Event-time timers that `on_timer` sets meanwhile fire
too, up to the time of the last timer that was set before. Processing-time timers that are still set at the end do not
fire. A checkpoint may come between two timers, never between two rows that one call yields. After a restore,
processing-time timers whose time has passed fire at once.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from penstock.api.callables import refuse_async_methods
from penstock.api.metrics import Metrics
from penstock.api.state import State, StateKind
from penstock.api.state_declarations import declared_states
from penstock.core.errors import UsageError

Rows = Mapping[str, Any] | Iterable[Mapping[str, Any]] | None
"""What a method may return: one row, several, or none."""

Row = dict[str, Any]

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)
_EARLIEST_US = (datetime.datetime.min.replace(tzinfo=datetime.UTC) - EPOCH) // _MICROSECOND
_LATEST_US = (datetime.datetime.max.replace(tzinfo=datetime.UTC) - EPOCH) // _MICROSECOND


class Timer:
    """A timer that fires."""

    __slots__ = ("kind", "time_us")

    def __init__(self, kind: str, time_us: int) -> None:
        self.kind = kind
        """Which time the timer waited for: `event-time` or `processing-time`."""
        self.time_us = time_us
        """The time that the timer was set for, in microseconds since 1970."""

    @property
    def time(self) -> datetime.datetime:
        """The time that the timer was set for, in UTC."""
        return EPOCH + datetime.timedelta(microseconds=self.time_us)

    def __repr__(self) -> str:
        return f"<{self.kind} timer of {self.time}>"


class Timers:
    """The timers of the current key. A key has at most one timer of a kind for a time: setting a timer twice changes
    nothing.

    A time is a `datetime` (a `datetime` without a time zone is taken as UTC), or a whole number of microseconds since
    1970.
    """

    def at_event_time(self, time: datetime.datetime | int) -> None:
        """Have `on_timer` called when the watermark reaches `time`."""
        raise _no_timers_of_a_key(time)

    def at_processing_time(self, time: datetime.datetime | int) -> None:
        """Have `on_timer` called when the clock reaches `time`."""
        raise _no_timers_of_a_key(time)

    def delete_event_time(self, time: datetime.datetime | int) -> None:
        """Delete an event-time timer; nothing happens if there is no such timer."""
        raise _no_timers_of_a_key(time)

    def delete_processing_time(self, time: datetime.datetime | int) -> None:
        """Delete a processing-time timer; nothing happens if there is no such timer."""
        raise _no_timers_of_a_key(time)

    def event_times(self) -> list[datetime.datetime]:
        """The times of all event-time timers of the key, in order."""
        raise _no_timers_of_a_key()

    def processing_times(self) -> list[datetime.datetime]:
        """The times of all processing-time timers of the key, in order."""
        raise _no_timers_of_a_key()


def _no_timers_of_a_key(time: object = None) -> UsageError:
    asked = "" if time is None else f" and cannot have a timer for {time!r}"
    return UsageError(
        f"timers that the program has made belong to no key{asked}",
        hint="use context.timers in on_row and on_timer: those are the timers of the current key",
    )


class FunctionContext:
    """What a function may know about its step and its subtask."""

    @property
    def name(self) -> str:
        """The name of the step."""
        raise NotImplementedError

    @property
    def subtask(self) -> int:
        """The number of this subtask, from 0."""
        raise NotImplementedError

    @property
    def parallelism(self) -> int:
        """How many subtasks the step has."""
        raise NotImplementedError

    @property
    def watermark(self) -> datetime.datetime | None:
        """How far event time has come; None before the first watermark, the greatest datetime after the last
        watermark."""
        raise NotImplementedError

    @property
    def processing_time(self) -> datetime.datetime:
        """The time on the clock, to the millisecond."""
        raise NotImplementedError

    @property
    def metrics(self) -> Metrics:
        """The metrics of this subtask of the function: `context.metrics.counter("rejected").add()`,
        `context.metrics.gauge("open").set(12)`, `context.metrics.histogram("seconds").record(0.7)`.

        The metrics of all subtasks are in `job.view().metrics`, and at the address `/metrics` of the page. They begin
        at zero when the subtask begins, also after a restart. A metric is cheap, and may be used for every row.
        """
        raise NotImplementedError

    def emit(self, side: str, row: Mapping[str, Any] | pa.RecordBatch | pa.Table) -> None:
        """Put a row into a side output of the step: a dict with the columns that `sides=` declares for that name where
        the step is made. A function over batches may emit an Arrow batch.

        May be called wherever the function may return rows. The stream of the rows is `stream.side(name)`. Rows of a
        side output that nothing reads are dropped.
        """
        raise NotImplementedError


class KeyedContext(FunctionContext):
    """What a keyed function may know about its step, its subtask and the current key."""

    key: Any
    """The current key: the value of the key column, or a tuple if there are several key columns. None in a call that
    has no key."""
    timers: Timers

    @property
    def key_group(self) -> int | None:
        """The key group of the current key, and so the number of its stream of raw keyed state. None in a call that has
        no key."""
        raise NotImplementedError


class Function:
    """What functions with state have in common."""

    def open(self, context: FunctionContext) -> None:
        """Called once, before all other methods. Operator state is restored by then. The call may block."""

    def before_barrier(self, context: FunctionContext) -> Rows:
        """Called when a checkpoint is about to be taken, and once when all data has been seen, before `on_end`: return
        the rows that the function holds back in attributes. Returned rows belong before the checkpoint, and need not be
        kept in state. Rows that are held back while the watermark goes on may be late for the steps that follow. There
        is no key."""

    def on_snapshot(self, checkpoint: int) -> None:
        """Called after `before_barrier`, when the state is about to be saved for a checkpoint. The function must put
        values that it has in attributes, and that must survive a failure, into declared operator state here. Must be
        quick. There is no key."""

    def on_checkpoint_complete(self, checkpoint: int) -> None:
        """Called when a checkpoint is complete and durable. A checkpoint covers all earlier checkpoints: if several
        complete, the call may come for the newest only. After a failure the call may not come at all. There is no
        key."""

    def on_checkpoint_subsumed(self, checkpoint: int) -> None:
        """Called when a checkpoint and all earlier checkpoints are deleted because newer checkpoints are complete:
        nothing will be restored from a deleted checkpoint. Data that the function keeps elsewhere for a deleted
        checkpoint, such as a version of a table, may be removed here. To remove such data when the next checkpoint
        completes is too early, because several checkpoints may be retained. If several checkpoints are deleted, the
        call may come for the newest only. There is no key."""

    def on_checkpoint_aborted(self, checkpoint: int) -> None:
        """Called when a checkpoint was aborted, whether or not this subtask had saved its state for the checkpoint. The
        next checkpoint will contain what the aborted checkpoint was to contain. There is no key."""

    def close(self) -> None:
        """Called once at the end, also after a failure."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        declared_states(cls)


class TimedFunction(Function):
    """What functions over keyed streams have in common: timers, and an end."""

    def on_timer(self, timer: Timer, context: KeyedContext) -> Rows:  # noqa: ARG002
        """Called when a timer fires, with the state of the key that set the timer."""
        raise UsageError(
            f"{timer!r} fired in {type(self).__name__}, which has no on_timer", hint="write the method on_timer"
        )

    def on_end(self, context: KeyedContext) -> Rows:
        """Called once per subtask when all data has been seen and all event-time timers have fired; not when the job is
        stopped without drain. There is no key."""


class KeyedFunction(TimedFunction):
    """A function over the rows of a keyed stream; see `KeyedStream.process`.

    >>> import datetime
    >>> import penstock as ps
    >>> from penstock.testing import run
    >>> class Unpaid(ps.KeyedFunction):
    ...     paid = ps.value_state("paid", "boolean", default=False)
    ...     def on_row(self, row, context):
    ...         if row["event"] == "paid":
    ...             self.paid.set(True)
    ...         else:
    ...             context.timers.at_event_time(row["ts"] + datetime.timedelta(minutes=15))
    ...     def on_timer(self, timer, context):
    ...         if not self.paid.get():
    ...             return {"order": context.key}
    >>> def program(env):
    ...     noon = datetime.datetime(2026, 1, 1, 12)
    ...     rows = [("a", "placed"), ("b", "placed"), ("a", "paid")]
    ...     events = env.from_iterable([{"order": order, "event": event, "ts": noon} for order, event in rows])
    ...     orders = events.watermark("ts").key_by("order")
    ...     orders.process(Unpaid(), schema="order string").write(ps.collect())
    >>> run(program)
    [{'order': 'b'}]
    """

    def on_row(self, row: Row, context: KeyedContext) -> Rows:
        """Called for every record, with the state of its key."""
        raise NotImplementedError


class KeyedBroadcastFunction(KeyedFunction):
    """A function over a keyed stream and a broadcast stream; see `KeyedStream.connect`.

    `on_row` reads broadcast state, `on_broadcast` writes it. Rows of the two streams come in no particular order,
    unless `connect(..., wait=...)` says so. Broadcast rows that different subtasks made come in no particular order
    either.

    >>> import penstock as ps
    >>> from penstock.testing import run
    >>> class Limits(ps.KeyedBroadcastFunction):
    ...     limits = ps.broadcast_state("limits", key="string", value="bigint")
    ...     def on_broadcast(self, row, context):
    ...         self.limits[row["item"]] = row["limit"]
    ...     def on_row(self, row, context):
    ...         return row if row["price"] > self.limits.get(context.key, 0) else None
    >>> def program(env):
    ...     bids = env.from_iterable([{"item": "pen", "price": price} for price in (3, 9)], name="bids")
    ...     limits = env.from_iterable([{"item": "pen", "limit": 5}], name="limits")
    ...     both = bids.key_by("item").connect(limits, wait="end")
    ...     both.process(Limits(), schema="item string, price bigint").write(ps.collect())
    >>> run(program)
    [{'item': 'pen', 'price': 9}]
    """

    def on_broadcast(self, row: Row, context: KeyedContext) -> Rows:
        """Called in every subtask for every broadcast record. There is no key."""
        raise NotImplementedError


class KeyedCoFunction(TimedFunction):
    """A function over two keyed streams, with state and timers that both streams share; see `KeyedStream.connect`.

    `on_left` is called for the records of the stream that `connect` was called on, `on_right` for the records of the
    other stream. Both have the state and the timers of the record's key. Records of one stream and one key are handled
    in the order in which they come. Records of the two streams come in no particular order.

    >>> import datetime
    >>> import penstock as ps
    >>> from penstock.testing import run
    >>> class Unpaid(ps.KeyedCoFunction):
    ...     paid = ps.value_state("paid", "boolean", default=False)
    ...     def on_left(self, order, context):
    ...         context.timers.at_event_time(order["ts"] + datetime.timedelta(minutes=15))
    ...     def on_right(self, payment, context):
    ...         self.paid.set(True)
    ...     def on_timer(self, timer, context):
    ...         if not self.paid.get():
    ...             return {"order": context.key}
    >>> def program(env):
    ...     noon = datetime.datetime(2026, 1, 1, 12)
    ...     orders = env.from_iterable([{"order": order, "ts": noon} for order in "ab"], name="orders").watermark("ts")
    ...     payments = env.from_iterable([{"paid": "a", "ts": noon}], name="payments").watermark("ts")
    ...     both = orders.key_by("order").connect(payments.key_by("paid"))
    ...     both.process(Unpaid(), schema="order string").write(ps.collect())
    >>> run(program)
    [{'order': 'b'}]
    """

    def on_left(self, row: Row, context: KeyedContext) -> Rows:
        """Called for every record of the stream that `connect` was called on, with the state of its key."""
        raise NotImplementedError

    def on_right(self, row: Row, context: KeyedContext) -> Rows:
        """Called for every record of the other stream, with the state of its key."""
        raise NotImplementedError


class ProcessFunction(Function):
    """A function over the rows or batches of a stream; see `Stream.process`. Write `on_row` or `on_batch`.

    The function may declare operator state: `split_list_state`, `union_list_state`, `broadcast_state`,
    `raw_split_list_state`, `raw_union_list_state`.

    >>> import penstock as ps
    >>> from penstock.testing import run
    >>> class Placed(ps.ProcessFunction):
    ...     def open(self, context):
    ...         self.place = f"{context.subtask + 1} of {context.parallelism}"
    ...     def on_row(self, row, context):
    ...         return {"word": row["word"], "place": self.place}
    >>> def program(env):
    ...     words = env.from_iterable(["to"], schema="word string")
    ...     words.process(Placed(), schema="word string, place string").write(ps.collect())
    >>> run(program, parallelism=1)
    [{'word': 'to', 'place': '1 of 1'}]
    """

    def on_row(self, row: Row, context: FunctionContext) -> Rows:
        """Called for every record."""
        raise NotImplementedError

    def on_batch(
        self, batch: pa.RecordBatch, context: FunctionContext
    ) -> pa.RecordBatch | pa.Table | Iterable[pa.RecordBatch | pa.Table] | None:
        """Called for every batch of records. The number of rows in a batch changes from run to run."""
        raise NotImplementedError

    def on_end(self, context: FunctionContext) -> Rows:
        """Called once per subtask when all data has been seen; not when the job is stopped without drain."""


def time_in_us(given: datetime.datetime | int, *, of: str = "a timer") -> int:
    """A point in time in microseconds since 1970. Raises `UsageError` if `given` is no point in time; `of` says to what
    the time was given."""
    if isinstance(given, datetime.datetime):
        aware = given if given.tzinfo is not None else given.replace(tzinfo=datetime.UTC)
        return (aware - EPOCH) // _MICROSECOND
    if isinstance(given, int) and not isinstance(given, bool):
        if _EARLIEST_US <= given <= _LATEST_US:
            return given
        raise UsageError(f"{of} for {given} microseconds since 1970 is not within the years 1 to 9999")
    raise UsageError(f"{of} cannot be set for {given!r}", hint="give a datetime, or microseconds since 1970")


def is_overridden(function: Function, base: type[Function], method: str) -> bool:
    """Whether a function's class has its own version of a method of `base`."""
    return getattr(type(function), method) is not getattr(base, method)


def check_function(function: object, base: type[Function], *, argument: str, methods: tuple[str, ...]) -> None:
    """Raise `UsageError` unless `function` is an instance of `base` with exactly one of `methods` and no async
    method."""
    if isinstance(function, type) and issubclass(function, base):
        raise UsageError(
            f"{argument} takes an object, not the class {function.__name__}", hint=f"write {function.__name__}()"
        )
    if not isinstance(function, base):
        raise UsageError(
            f"{argument} takes a function of class {base.__name__}, not {function!r}",
            hint=f"write a class that inherits from ps.{base.__name__}",
        )
    written = [method for method in methods if is_overridden(function, base, method)]
    if len(written) != 1:
        raise UsageError(
            f"{type(function).__name__} has {'no ' + ' or '.join(methods) if not written else ' and '.join(written)}",
            hint=f"write the method {methods[0]}" if not written else "write only one of these methods",
        )
    refuse_async_methods(function, base)
    declared_states(function)


def keyed_states(states: Mapping[str, State]) -> dict[str, State]:
    """The states that exist once per key."""
    return {name: state for name, state in states.items() if state.spec.kind.is_keyed}


def check_states(function: Function, kinds: tuple[StateKind, ...], *, where: str) -> None:
    """Raise `UsageError` if a function declares state of one of these kinds. `where` says, after "which", why not."""
    for state in declared_states(function).values():
        if state.spec.kind in kinds:
            raise UsageError(
                f"{type(function).__name__} declares {state.spec.kind.value} state {state.spec.name!r}, which {where}"
            )
