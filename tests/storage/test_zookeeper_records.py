"""Drivers in ZooKeeper: what no other kind of records has to stand."""

from __future__ import annotations

import shutil
import socket
import threading
from pathlib import Path

import pytest
from election_rig import FOLDER, ZooKeeperMeeting, clock_ms
from zookeeper_server import ZooKeeperServer

from penstock.api.high_availability import InZooKeeper
from penstock.core.errors import StorageError
from penstock.core.ids import CheckpointId, JobId
from penstock.core.job.events import JobState
from penstock.core.recovery.tenure import JobOutcome, Start
from penstock.storage.completed import FileCompletedStore
from penstock.storage.files import FileStore
from penstock.storage.zookeeper import ZooKeeperElection


@pytest.fixture
def server(tmp_path: Path):
    """A server that a test may stop."""
    made = ZooKeeperServer(tmp_path)
    yield made
    made.close()


@pytest.mark.slow
def test_a_server_that_is_started_again_keeps_the_job_with_its_driver(server: ZooKeeperServer, tmp_path: Path):
    """1. A driver has the job, another waits. 2. The server dies in the middle of a change. 3. It comes up again: the
    change is made, the driver has the job still, and the other one waits."""
    # Long enough for a server that comes up slowly.
    meeting = ZooKeeperMeeting(server, tmp_path / "checkpoints", session_timeout_ms=60_000)
    try:
        lost = threading.Event()
        leader = meeting.driver().campaign(lost.set)
        assert leader is not None
        standby = meeting.driver()
        assert standby.campaign(lost.set) is None
        leader.records.take_ids(CheckpointId(64))
        server.stop()
        change = threading.Thread(target=leader.records.record, args=(CheckpointId(3), b"a record"))
        change.start()
        server.start()
        change.join()
        assert leader.records.holds(CheckpointId(3))
        assert standby.campaign(lost.set) is None
        assert not lost.is_set()
        leader.resign()
        files = FileCompletedStore(FileStore(tmp_path / "checkpoints"), FOLDER)
        assert [entry.checkpoint for entry in files.load()] == [3], "what it says lies in the checkpoint storage"
    finally:
        meeting.close()


@pytest.mark.slow
def test_a_change_that_no_server_answers_is_an_error(server: ZooKeeperServer, tmp_path: Path):
    settings = InZooKeeper(hosts=server.hosts, root="/short", session_timeout_ms=1_000, restart_finished=False)
    leader = ZooKeeperElection(
        settings, JobId("job"), FileStore(tmp_path / "checkpoints"), token="a", clock_ms=clock_ms
    ).campaign(lambda: None)
    assert leader is not None
    server.stop()
    with pytest.raises(StorageError, match="could not be reached"):
        leader.records.take_ids(CheckpointId(64))
    leader.resign()


def test_where_no_server_is_nobody_has_a_job(tmp_path: Path):
    settings = InZooKeeper(hosts="127.0.0.1:1", root="/none", session_timeout_ms=500, restart_finished=False)
    election = ZooKeeperElection(settings, JobId("job"), FileStore(tmp_path), token="a", clock_ms=clock_ms)
    with pytest.raises(StorageError, match=r"ZooKeeper at 127.0.0.1:1 could not be reached"):
        election.campaign(lambda: None)
    election.close()


@pytest.mark.slow
def test_of_a_job_that_has_ended_the_outcome_is_found_when_its_checkpoint_directory_is_gone(
    zookeeper: ZooKeeperServer, tmp_path: Path
):
    outcome = JobOutcome(state=JobState.FINISHED)
    meeting = ZooKeeperMeeting(zookeeper, tmp_path / "checkpoints")
    try:
        records = meeting.take_over().records
        records.record_start(Start(splits={}, max_parallelism=128), None)
        records.record_outcome(outcome)
        shutil.rmtree(tmp_path / "checkpoints")
        found = meeting.take_over().tenure
    finally:
        meeting.close()
    assert (found.outcome, found.start) == (outcome, None)


def test_a_server_that_takes_calls_and_does_not_answer_is_called_again_before_the_session_is_over(tmp_path: Path):
    """It may be coming up: a driver that waited for its answer as long as its session lasts would lose its job."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hosts = f"127.0.0.1:{silent.getsockname()[1]}"
        settings = InZooKeeper(hosts=hosts, root="/none", session_timeout_ms=2_000, restart_finished=False)
        election = ZooKeeperElection(settings, JobId("job"), FileStore(tmp_path), token="a", clock_ms=clock_ms)
        with pytest.raises(StorageError, match="could not be reached"):
            election.campaign(lambda: None)
        election.close()
        silent.settimeout(0)
        for _ in range(2):
            silent.accept()[0].close()
