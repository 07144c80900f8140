"""Sinks that replay what they kept, in one transaction with a marker: the order of steps of the Kafka sink."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from planted_bugs import found, shows

from penstock.connectors.kafka.replay import Prepared, Replay
from penstock.core.errors import ExternalError
from penstock.sim.external import ExternalSystem
from penstock.sim.faults import CrashInCall, SinkErrors
from penstock.sim.replaying import ReplaySink, SimLane
from penstock.sim.rules import Rule
from penstock.sim.simulation import Parts
from penstock.sim.slots import Notice
from penstock.sim.world import World


def replaying(make: Any, count: int, *, after: bool = False) -> list[Any]:
    """Worlds whose processes die in the steps of commits, and whose cluster fails."""
    made = []
    for number in range(count):
        scenario = make.workload(make.plain(number), replays=True)
        faults = (
            CrashInCall(at_ms=100, slot=number % 2, call="commit", calls=1 + number, notice=Notice.TOLD),
            SinkErrors(at_ms=200, for_ms=400, share=0.1, after=after or number % 2 == 0),
            CrashInCall(at_ms=700, slot=number % 2, call="commit", calls=15 - number, notice=Notice.TOLD),
        )
        made.append(replace(scenario, faults=faults))
    return made


def test_every_record_is_shown_once_wherever_a_commit_breaks_off(make: Any):
    assert found(replaying(make, 14)) == []


def test_processes_die_and_calls_fail_at_every_step(make: Any, monkeypatch: pytest.MonkeyPatch):
    broke: dict[str, None] = {}
    for step in ("open", "marker", "begin", "produce", "mark", "commit"):
        honest = getattr(SimLane, step)

        def noting(lane: SimLane, *given: Any, step: str = step, honest: Any = honest) -> Any:
            try:
                return honest(lane, *given)
            except BaseException:
                broke[step] = None
                raise

        monkeypatch.setattr(SimLane, step, noting)
    assert found(replaying(make, 14)) == []
    assert set(broke) == {"open", "marker", "begin", "produce", "mark", "commit"}


# --- planted bugs ----------------------------------------------------------------------------------------------------


def test_a_commit_that_does_not_look_at_the_marker_is_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Replay, "_known", lambda replay, piece: None)
    assert shows(Rule.EXACTLY_ONCE, replaying(make, 14, after=True))


def test_a_marker_that_is_not_part_of_the_transaction_is_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    honest = SimLane.mark

    def hasty(lane: SimLane, piece: Any) -> None:
        lane._state.marker = piece.checkpoint
        honest(lane, piece)

    monkeypatch.setattr(SimLane, "mark", hasty)
    assert shows(Rule.EXACTLY_ONCE, replaying(make, 14))


def test_a_failure_that_is_taken_for_a_commit_is_found(make: Any):
    class Believing(ReplaySink):
        def replay(self, lane: str) -> Replay:
            made = super().replay(lane)
            honest = made.commit

            def commit(piece: Any, read: Any) -> bool:
                try:
                    return honest(piece, read)
                except Exception:  # noqa: BLE001  # that is the bug
                    return True

            made.commit = commit  # type: ignore[method-assign]
            return made

    assert shows(Rule.EXACTLY_ONCE, replaying(make, 14), Parts(replay_sink=Believing))


def test_a_writer_whose_lane_another_writer_has_opened_shows_nothing():
    """A slot that was given up wakes up in the middle of its commit, when its successor has written the records."""
    system = ExternalSystem(World(0))
    old, new = SimLane(system, "lane"), SimLane(system, "lane")
    transaction = system.prepare("sink", subtask=0, epoch=1, checkpoint=1, batches=())
    piece = Prepared(
        lane="lane", checkpoint=1, places=(transaction.token,), records=0, topic="", topic_id="", created_ms=0
    )
    old.open()
    old.begin()
    old.mark(piece)
    assert Replay(new, on_unknown="fail", now_ms=lambda: 0).commit(piece, lambda _piece: [])
    with pytest.raises(ExternalError, match="another writer has the lane"):
        old.commit()
    assert list(system.committed) == [transaction.token]
