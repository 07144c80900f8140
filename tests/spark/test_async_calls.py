"""Async functions on an event loop beside the loop of the slot. There is no Spark in these tests."""

from __future__ import annotations

import asyncio
import threading
import traceback

import pytest

from penstock.spark import async_calls
from penstock.spark.async_calls import AsyncioCalls

PATIENCE_S = 30


class Loop:
    """The loop of a slot, as far as calls see it: what has been told, and waiting to be woken."""

    def __init__(self) -> None:
        self._woken = threading.Event()
        self.calls = AsyncioCalls(self._woken.set, name="penstock-test-calls")
        self.told: dict[int, object] = {}
        self.rounds = 0

    def answered(self, ended) -> None:
        self.rounds += 1
        self.told.update({call: result.value if result.error is None else result.error for call, result in ended})

    def until_told(self, *calls: int) -> None:
        while not set(calls) <= self.told.keys():
            assert self._woken.wait(PATIENCE_S)
            self._woken.clear()
            self.calls.collect()


@pytest.fixture
def loop():
    made = Loop()
    yield made
    made.calls.close()
    assert not made.calls.is_alive


async def double(number):
    return number * 2


def test_calls_are_told_on_the_loop_that_collects(loop):
    conversation = loop.calls.begin(double, loop.answered)
    conversation.ask([(0, 10), (1, 11)])
    loop.until_told(0, 1)
    assert loop.told == {0: 20, 1: 22}


def test_no_thread_is_made_before_a_function_is_there():
    calls = AsyncioCalls(lambda: None, name="penstock-test-calls")
    calls.collect()
    assert not calls.is_alive
    calls.close()


def test_many_calls_are_under_way_at_the_same_time(loop):
    async def all_together(number):
        async with asyncio.timeout(PATIENCE_S):
            await barrier.wait()
        return number

    barrier = asyncio.Barrier(100)
    loop.calls.begin(all_together, loop.answered).ask([(n, n) for n in range(100)])
    loop.until_told(*range(100))
    assert loop.told == {n: n for n in range(100)}


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()])
def test_whatever_a_function_raises_is_told_and_the_next_call_runs(loop, error):
    async def raising(number):
        if number:
            raise error
        return number

    conversation = loop.calls.begin(raising, loop.answered)
    conversation.ask([(0, 1)])
    loop.until_told(0)
    conversation.ask([(1, 0)])
    loop.until_told(1)
    assert loop.told == {0: error, 1: 0}
    frames = traceback.extract_tb(loop.told[0].__traceback__)
    assert [frame.name for frame in frames] == ["raising"]


def test_a_call_that_is_given_up_is_cancelled(loop):
    seen, begun = [], threading.Event()

    async def waits(number):
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append(number)
            raise

    conversation = loop.calls.begin(waits, loop.answered)
    conversation.ask([(0, "first")])
    assert begun.wait(PATIENCE_S)
    conversation.cancel([0, 17])
    loop.until_told(0)
    assert seen == ["first"]


def test_the_opening_blocks_and_raises_what_it_raises(loop):
    async def fails():
        await asyncio.sleep(0)
        raise ConnectionError("nobody there")

    async def leaves():
        raise SystemExit(1)

    conversation = loop.calls.begin(double, loop.answered)
    with pytest.raises(ConnectionError, match="nobody there"):
        conversation.open(fails)
    with pytest.raises(RuntimeError, match="SystemExit"):
        conversation.open(leaves)
    conversation.open(lambda: asyncio.sleep(0))


def test_closing_cancels_all_calls_then_runs_the_last_coroutine_and_tells_nothing_more(loop):
    events = []

    async def waits(number):
        try:
            await asyncio.Event().wait()
        finally:
            events.append(f"call {number}")

    async def closing():
        events.append("close")

    conversation = loop.calls.begin(waits, loop.answered)
    conversation.ask([(0, 0), (1, 1)])
    # The opening runs behind the beginnings of both calls.
    conversation.open(lambda: asyncio.sleep(0))
    conversation.close(closing)
    conversation.close(closing)
    loop.calls.close()
    loop.calls.collect()
    assert events == ["call 0", "call 1", "close"]
    assert loop.told == {}


def test_a_close_that_fails_is_told_in_the_log(loop, caplog):
    async def closing():
        raise ConnectionError("gone already")

    loop.calls.begin(double, loop.answered).close(closing)
    loop.calls.close()
    assert "the close of an async function raised ConnectionError: gone already" in caplog.text


def test_a_call_that_cannot_be_cancelled_does_not_keep_the_thread(monkeypatch):
    monkeypatch.setattr(async_calls, "CLOSE_TIMEOUT_S", 0.1)
    loop, begun = Loop(), threading.Event()

    async def stubborn(number):
        begun.set()
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue

    conversation = loop.calls.begin(stubborn, loop.answered)
    conversation.ask([(0, 0)])
    assert begun.wait(PATIENCE_S)
    conversation.close(None)
    loop.calls.close()
    assert not loop.calls.is_alive


def test_a_call_that_blocks_does_not_keep_the_slot(monkeypatch):
    monkeypatch.setattr(async_calls, "CLOSE_TIMEOUT_S", 0.1)
    loop, begun, let_go = Loop(), threading.Event(), threading.Event()

    async def blocks(number):
        begun.set()
        let_go.wait(PATIENCE_S)

    loop.calls.begin(blocks, loop.answered).ask([(0, 0)])
    assert begun.wait(PATIENCE_S)
    loop.calls.close()
    assert loop.calls.is_alive
    let_go.set()
    loop.calls._thread.join(PATIENCE_S)


def test_blocking_code_can_run_in_a_thread_of_its_own(loop):
    async def elsewhere(number):
        return await asyncio.to_thread(lambda: threading.current_thread().name)

    loop.calls.begin(elsewhere, loop.answered).ask([(0, 0)])
    loop.until_told(0)
    assert loop.told[0].startswith("penstock-test-calls_")


async def leave():
    raise SystemExit(3)


async def leaves_in_a_task_of_its_own(number):
    """asyncio lets such a task end the whole event loop."""
    if number:
        return number
    await asyncio.gather(asyncio.ensure_future(leave()))
    return None


def test_sys_exit_in_a_task_that_a_function_began_is_told_and_ends_no_other_call(loop):
    conversation = loop.calls.begin(leaves_in_a_task_of_its_own, loop.answered)
    conversation.ask([(0, 0), (1, 1)])
    loop.until_told(0, 1)
    conversation.ask([(2, 2), (3, 0)])
    loop.until_told(2, 3)
    assert isinstance(loop.told[0], SystemExit)
    assert isinstance(loop.told[3], SystemExit)
    assert (loop.told[1], loop.told[2]) == (1, 2)


def test_a_function_is_opened_after_the_function_before_it_was_closed(loop):
    """A region restarts: the old calls take their time to end, and the new function is opened meanwhile."""
    done, is_asked, may_end = [], threading.Event(), threading.Event()

    async def stubborn(number):
        is_asked.set()
        try:
            await asyncio.sleep(PATIENCE_S)
        except asyncio.CancelledError:
            await asyncio.to_thread(may_end.wait, PATIENCE_S)

    async def close_old():
        done.append("close")

    async def open_new():
        done.append("open")

    old = loop.calls.begin(stubborn, loop.answered)
    old.ask([(0, 0)])
    assert is_asked.wait(PATIENCE_S)
    old.close(close_old)
    new = loop.calls.begin(double, loop.answered)
    opening = threading.Thread(target=new.open, args=(open_new,))
    opening.start()
    # Time enough for an `open` that does not wait.
    opening.join(timeout=0.2)
    may_end.set()
    opening.join(timeout=PATIENCE_S)
    assert done == ["close", "open"]
