"""However many checkpoints a job has taken, its processes hold the same number of things."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from soak_rig import Soak, build_tables
from state_rig import LOCAL_DIRECTORY

from penstock.core.coordinator import savepoints, story
from penstock.core.coordinator.effects import RequestFailure
from penstock.core.coordinator.events import RequestKind
from penstock.core.recovery.metadata import CompletedCheckpoint
from penstock.runtime.master import chronicle, progress
from penstock.settings import CheckpointSettings, FixedDelay, JobSettings, NetworkSettings, SlotSettings, StateSettings

ROUNDS = 4
"""Until the processes hold what they hold in the long run."""
TIMES_MORE = 10
LOOKS = 4
SLACK = 4


@pytest.fixture(autouse=True)
def _soon_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is remembered of the last few is of fewer here, so that it is full when the first look is taken."""
    monkeypatch.setattr(story, "MAX_CHECKPOINTS", 8)
    monkeypatch.setattr(savepoints, "COMPLETED_REMEMBERED", 3)
    monkeypatch.setattr(savepoints, "FAILED_REMEMBERED", 3)
    monkeypatch.setattr(progress, "FAILURES_SHOWN", 3)


def settings(*, unaligned: bool = False, state: StateSettings | None = None, **checkpoint: object) -> JobSettings:
    small = 2_000 if unaligned else 1 << 20
    return JobSettings(
        parallelism=2,
        checkpoint=CheckpointSettings(interval_ms=50, unaligned=unaligned, tolerable_failures=None, **checkpoint),
        restart=FixedDelay(attempts=1_000_000, delay_ms=10),
        network=NetworkSettings(channel_bytes=small, output_bytes=small, batch_bytes=small),
        slot=SlotSettings(heartbeat_interval_ms=100, heartbeat_timeout_ms=5_000),
        state=state or StateSettings(),
    )


def round_of(soak: Soak, number: int) -> None:
    """A few checkpoints of each kind that there is."""
    soak.until_completed(soak.completed + 2)
    assert isinstance(soak.request(RequestKind.CHECKPOINT), CompletedCheckpoint)
    assert isinstance(soak.request(RequestKind.SAVEPOINT, f"save/{number}"), CompletedCheckpoint)


def looks(soak: Soak) -> list[Counter[str]]:
    """What the processes hold, after each of a few checkpoints."""
    found = []
    for _ in range(LOOKS):
        soak.until_completed(soak.completed + 1)
        found.append(soak.sizes())
    return found


def check_constant(soak: Soak, play: Callable[[Soak, int], None] = round_of) -> None:
    for number in range(ROUNDS):
        play(soak, number)
    before = looks(soak)
    for number in range(ROUNDS, ROUNDS * TIMES_MORE):
        play(soak, number)
    after = looks(soak)
    # What is under way at the moment differs from look to look; what grows is more in every one of them.
    most = {place: max(look[place] for look in before) for look in after for place in look}
    least = {place: min(look[place] for look in after) for place in most}
    grown = {place: (most[place], least[place]) for place in most if least[place] > most[place] + SLACK}
    assert grown == {}


@pytest.mark.slow
def test_checkpoints_and_savepoints_leave_nothing_behind():
    check_constant(Soak(settings()))


@pytest.mark.slow
def test_unaligned_and_incremental_checkpoints_leave_nothing_behind():
    state = StateSettings(backend="rocksdb", local_directory=LOCAL_DIRECTORY)
    soak = Soak(settings(unaligned=True, state=state, local_copies_bytes=20_000))
    try:
        check_constant(soak)
    finally:
        soak.close()


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
def test_steps_that_keep_rows_keep_no_more_of_them(backend: str):
    state = StateSettings(backend=backend, local_directory=LOCAL_DIRECTORY)
    soak = Soak(settings(state=state, local_copies_bytes=20_000), build=build_tables)
    try:
        check_constant(soak)
    finally:
        soak.close()


@pytest.mark.slow
def test_restarts_and_failed_snapshots_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch):
    # The chronicle remembers the last attempts, more than there are here.
    monkeypatch.setattr(chronicle, "ATTEMPTS_KEPT", 2)

    def play(soak: Soak, number: int) -> None:
        soak.until_completed(soak.completed + 1)
        failed = soak.ask(RequestKind.SAVEPOINT, f"save/{number}")
        soak.crash()
        soak.until(lambda: bool(failed))
        assert isinstance(failed[0], RequestFailure)

    check_constant(Soak(settings()), play)
