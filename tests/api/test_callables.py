"""Functions that give a coroutine instead of a result are refused where they are given, however they are wrapped."""

from __future__ import annotations

import functools

import pytest

from penstock.api.callables import check_callable
from penstock.api.functions import KeyedBroadcastFunction, KeyedFunction, ProcessFunction
from penstock.api.hooks import CheckpointHook
from penstock.api.state_declarations import aggregating_state, reducing_state
from penstock.core.errors import UsageError


async def later(row):
    return row


async def one_by_one(row):
    yield row


class Later:
    async def __call__(self, row):
        return row

    async def method(self, row):
        return row

    @staticmethod
    async def static(row):
        return row


class Keyed(KeyedFunction):
    async def on_row(self, row, context):
        return row


class WithTimer(KeyedFunction):
    def on_row(self, row, context):
        return row

    async def on_timer(self, timer, context):
        return None


class OnBatch(ProcessFunction):
    async def on_batch(self, batch, context):
        yield batch


class Opens(ProcessFunction):
    async def open(self, context):
        pass

    def on_row(self, row, context):
        return row


class Broadcast(KeyedBroadcastFunction):
    def on_row(self, row, context):
        return row

    async def on_broadcast(self, row, context):
        return None


class Hook(CheckpointHook):
    async def trigger(self, checkpoint, timestamp_ms):
        return None


ASYNC = [
    later,
    one_by_one,
    Later(),
    Later().method,
    Later.static,
    functools.partial(later, row=1),
    functools.partial(functools.partial(Later()), 1),
]


@pytest.mark.parametrize("function", ASYNC)
def test_whatever_is_async_is_refused(function):
    with pytest.raises(UsageError, match=r"map takes a function that returns its result, and .* is async") as caught:
        check_callable(function, "map")
    assert "write the function with def" in caught.value.hint


@functools.wraps(later)
def waits(row):
    return row


@pytest.mark.parametrize("function", [waits, len, int, Later, functools.partial(int, base=10)])
def test_what_returns_its_result_is_accepted(function):
    check_callable(function, "map")


SCHEMA = "price bigint"


@pytest.mark.parametrize(
    "give",
    [
        lambda stream: stream.map(later, schema=SCHEMA),
        lambda stream: stream.flat_map(one_by_one, schema=SCHEMA),
        lambda stream: stream.filter(later),
        lambda stream: stream.map_batches(later, schema=SCHEMA),
        lambda stream: stream.map_batches(later),
        lambda stream: stream.key_by("auction").reduce(later),
        lambda stream: stream.for_each_checkpoint(later),
        lambda stream: stream.process(OnBatch(), schema=SCHEMA),
        lambda stream: stream.process(Opens(), schema=SCHEMA),
        lambda stream: stream.key_by("auction").process(Keyed(), schema=SCHEMA),
        lambda stream: stream.key_by("auction").process(WithTimer(), schema=SCHEMA),
        lambda stream: stream.key_by("auction").connect(stream).process(Broadcast(), schema=SCHEMA),
    ],
)
def test_every_step_that_takes_a_function_refuses_an_async_one(bids, give):
    with pytest.raises(UsageError, match="is async"):
        give(bids)


def test_functions_of_states_and_hooks_are_looked_at_too(program):
    with pytest.raises(UsageError, match="reduce of state 'sum' takes a function that returns its result"):
        reducing_state("sum", "bigint", later)
    with pytest.raises(UsageError, match="add of state 'sum'"):
        aggregating_state("sum", "bigint", create=int, add=later)
    with pytest.raises(UsageError, match=r"Hook.trigger is async"):
        program.add_checkpoint_hook(Hook())


def test_sources_and_sinks_are_looked_at_too(program, bids, make_source, make_sink):
    source, sink = make_source(), make_sink()

    class LaterSource(type(source)):
        async def splits(self, parallelism):
            return []

    class LaterSink(type(sink)):
        async def commit(self, committables):
            pass

    source.__class__, sink.__class__ = LaterSource, LaterSink
    with pytest.raises(UsageError, match=r"LaterSource.splits is async"):
        program.read(source, name="other")
    with pytest.raises(UsageError, match=r"LaterSink.commit is async"):
        bids.write(sink)
