"""What holds for any interleaving of barriers, cancel markers, ends and data on one to five channels.

Two kinds of input. A *history* is what a correct job can send: on every channel ids grow, and the last checkpoint is
answered by a barrier, a cancel marker or an end. Whatever the order of arrival and reading, such a history must be read
to its end, and every checkpoint that completes must be a consistent cut of it. *Noise* is anything at all: the handler
must neither raise nor lose its books over it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from penstock.core.barrier.select import make_handler
from penstock.core.elements import Barrier, CancelMarker, CheckpointOptions, EndOfPartition
from penstock.core.ids import CheckpointId, Instant
from penstock.settings import CheckpointSettings, Mode

Option = TypeVar("Option")
Item = int | Barrier | CancelMarker | EndOfPartition

CREATED_AT = Instant(1_000)
"""Every barrier is as old as the story: the time-out, not the timestamp, is what varies."""

ALIGNED = CheckpointSettings(max_concurrent=3)
ALTERNATING = CheckpointSettings(unaligned=True)
AT_LEAST_ONCE = CheckpointSettings(mode=Mode.AT_LEAST_ONCE, max_concurrent=3)


# --- histories --------------------------------------------------------------------------------------------------------


class Choices:
    """Decisions read from drawn bytes: far cheaper than a draw each, and they still shrink. Zeros when they run out."""

    def __init__(self, drawn: bytes) -> None:
        self._left = list(reversed(drawn))

    def below(self, limit: int) -> int:
        return self._left.pop() % limit if self._left else 0

    def of(self, options: Sequence[Option]) -> Option:
        return options[self.below(len(options))]


DRAWN = st.binary(min_size=160, max_size=160)
ANSWERS = ("barrier",) * 6 + ("cancel", "skip", "end")
LAST_ANSWERS = ("barrier",) * 6 + ("cancel", "end")
STEPS = ("arrive", "arrive", "read", "read", "time")


@dataclass(frozen=True)
class History:
    """What is sent on every channel, and in which order it arrives and is read."""

    channels: list[list[Item]]
    schedule: list[tuple[str, int]]
    after_tasks_finish: bool
    announces: bool


def aligned_kinds(choices: Choices) -> list[CheckpointOptions]:
    del choices
    return [CheckpointOptions()]


def alternating_kinds(choices: Choices) -> list[CheckpointOptions]:
    """How the barriers of one checkpoint may look: one that may time out may have done so upstream, here and there."""
    unaligned = CheckpointOptions(unaligned=True)
    may_turn = CheckpointOptions(aligned_timeout_ms=choices.below(10))
    return choices.of([[CheckpointOptions(savepoint=True)], [unaligned], [may_turn, may_turn, unaligned]])


def history_of(choices: Choices, kinds: Callable[[Choices], list[CheckpointOptions]]) -> History:
    checkpoints = [kinds(choices) for _ in range(1 + choices.below(4))]
    return History(
        channels=[sent(choices, index, checkpoints) for index in range(1 + choices.below(5))],
        after_tasks_finish=choices.below(4) > 0,
        announces=choices.below(4) > 0,
        schedule=[(choices.of(STEPS), choices.below(5)) for _ in range(45)],
    )


def sent(choices: Choices, index: int, checkpoints: list[list[CheckpointOptions]]) -> list[Item]:
    """What is sent on one channel. A batch is a number that tells its channel and its place."""
    items: list[Item] = []

    def send_batches() -> None:
        items.extend([1_000 * index + len(items) + i for i in range(choices.below(3))])

    for number, kinds in enumerate(checkpoints, start=1):
        send_batches()
        match choices.of(LAST_ANSWERS if number == len(checkpoints) else ANSWERS):
            case "barrier":
                options = choices.of(kinds)
                items.append(Barrier(checkpoint=CheckpointId(number), timestamp=CREATED_AT, options=options))
            case "cancel":
                items.append(CancelMarker(checkpoint=CheckpointId(number)))
            case "end":
                return [*items, EndOfPartition()]
            case _:
                pass
    send_batches()
    return [*items, EndOfPartition()] if choices.below(2) else items


def run(task, history):
    """Arrival and reading as scheduled; then the rest, until nothing can be read."""
    waiting = [list(reversed(items)) for items in history.channels]
    for step, number in history.schedule:
        index = number % len(waiting)
        if step == "time":
            task.pass_time(number)
        elif step == "arrive" and waiting[index]:
            task.arrive(index, waiting[index].pop())
        elif step == "read" and task.can_read(index):
            task.read(index)
    for index, items in enumerate(waiting):
        while items:
            task.arrive(index, items.pop())
    while readable := [index for index in range(len(waiting)) if task.can_read(index)]:
        for index in readable:
            if task.can_read(index):
                task.read(index)


def check_progress(task):
    """Everything was read, in order, and no checkpoint is left over."""
    assert task.corrupt == []
    for channel in task.channels:
        assert not channel.queue
        assert not channel.blocked
        assert channel.processed == channel.received
    assert task.handler.pending is None
    assert task.handler.next_deadline() is None


def check_order(task):
    """Each checkpoint is triggered at most once and aborted at most once, and ids grow."""
    assert task.triggered == sorted(set(task.triggered))
    assert len(task.aborted) == len(set(task.aborted))


def ahead_of_barrier(channel, checkpoint):
    """What a checkpoint owes to a channel: all batches ahead of its barrier, or all if it ended without one."""
    assert checkpoint in channel.barrier_after or channel.ended
    return channel.received[: channel.barrier_after.get(checkpoint, len(channel.received))]


@given(drawn=DRAWN)
@hypothesis_settings(max_examples=100)
def test_aligned_checkpoints_are_consistent_cuts_and_never_deadlock(model_task, drawn):
    history = history_of(Choices(drawn), aligned_kinds)
    settings = CheckpointSettings(max_concurrent=3, after_tasks_finish=history.after_tasks_finish)
    task = model_task(make_handler(settings, channels=len(history.channels)), channels=len(history.channels))
    run(task, history)
    check_progress(task)
    check_order(task)
    assert not set(task.triggered) & set(task.aborted)
    for checkpoint, snapshot in task.snapshots.items():
        assert snapshot.processed == [ahead_of_barrier(channel, checkpoint) for channel in task.channels]


@given(drawn=DRAWN)
@hypothesis_settings(max_examples=200)
def test_unaligned_checkpoints_save_exactly_what_is_in_flight_and_never_deadlock(model_task, drawn):
    history = history_of(Choices(drawn), alternating_kinds)
    settings = CheckpointSettings(unaligned=True, after_tasks_finish=history.after_tasks_finish)
    task = model_task(
        make_handler(settings, channels=len(history.channels)),
        channels=len(history.channels),
        announces=history.announces,
    )
    run(task, history)
    check_progress(task)
    check_order(task)
    for checkpoint, snapshot in task.snapshots.items():
        assert snapshot.complete != snapshot.aborted
        if snapshot.complete and not snapshot.refused:
            for channel, processed, saved in zip(task.channels, snapshot.processed, snapshot.saved, strict=True):
                assert processed + saved == ahead_of_barrier(channel, checkpoint)


@given(drawn=DRAWN)
@hypothesis_settings(max_examples=100)
def test_tracked_checkpoints_lose_nothing_and_block_nothing(model_task, drawn):
    history = history_of(Choices(drawn), aligned_kinds)
    settings = CheckpointSettings(
        mode=Mode.AT_LEAST_ONCE, max_concurrent=3, after_tasks_finish=history.after_tasks_finish
    )
    task = model_task(make_handler(settings, channels=len(history.channels)), channels=len(history.channels))
    run(task, history)
    check_progress(task)
    check_order(task)
    assert not task.ever_blocked
    assert not set(task.triggered) & set(task.aborted)
    for checkpoint, snapshot in task.snapshots.items():
        for channel, processed in zip(task.channels, snapshot.processed, strict=True):
            owed = ahead_of_barrier(channel, checkpoint)
            assert processed[: len(owed)] == owed


# --- noise ------------------------------------------------------------------------------------------------------------


def noise_of(choices: Choices, channels: int) -> str:
    def word() -> str:
        number, at = 1 + choices.below(5), choices.below(channels)
        match choices.of(["barrier", "barrier", "barrier", "cancel", "announcement", "end", "master", "time", "tick"]):
            case "barrier":
                return f"{choices.of('BUTF')}{number}@{at}"
            case "cancel":
                return f"X{number}@{at}"
            case "announcement":
                return f"A{number}@{at}#{choices.below(9)}"
            case "end":
                return f"E@{at}"
            case "master":
                return f"M{choices.of(['', 'U', 'T'])}{number}"
            case "time":
                return f"+{choices.below(9)}"
            case _:
                return "tick"

    return " ".join(word() for _ in range(choices.below(40)))


@pytest.mark.parametrize("settings", [ALIGNED, ALTERNATING, AT_LEAST_ONCE], ids=["aligned", "alternating", "tracker"])
@given(drawn=DRAWN)
@hypothesis_settings(max_examples=60)
def test_no_input_whatever_makes_a_handler_raise_or_lose_its_books(bench, settings, drawn):
    choices = Choices(drawn)
    channels = 1 + choices.below(5)
    task = bench(make_handler(settings, channels=channels), timeout_ms=5)
    lines = task.feed(noise_of(choices, channels))
    assert task.triggered == sorted(set(task.triggered))
    assert len(task.aborted) == len(set(task.aborted))
    started = [line.split()[1] for line in lines if line.startswith("persist")]
    stopped = [line.split()[2].rstrip(",") for line in lines if line.startswith("stop")]
    ended = [line.split()[2] for line in lines if line.startswith("all in")]
    assert stopped == started[: len(stopped)]
    assert len(started) - len(stopped) <= 1
    for checkpoint in stopped:
        assert (checkpoint in ended) != (int(checkpoint) in task.aborted)
