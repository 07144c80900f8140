"""The sink against a real broker: each record once, wherever the process that writes it dies."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import kafka_sink_rig
import pyarrow as pa
import pytest
from confluent_kafka import Producer
from kafka_sink_rig import STEPS, context, rows, sink_at
from kafka_topics import committed, fresh_topic, values

from penstock.connectors.kafka.replay import decoded_prepared
from penstock.core.errors import ExternalError, UsageError

pytestmark = pytest.mark.slow

SUPPORT = Path(kafka_sink_rig.__file__).parent


def numbers(broker, topic):
    return sorted(int(value) for value in values(broker, topic))


def prepared(sink, checkpoint, batch, **who):
    writer = sink.writer(context(**who))
    writer.write(batch)
    found = writer.prepare(checkpoint)()
    writer.close()
    return found


def days_later(sink, days, monkeypatch):
    now = time.time() * 1_000 + days * 86_400_000
    monkeypatch.setattr("penstock.connectors.kafka.writing.now_ms", lambda: int(now))


def forget_markers(broker, committables):
    """What the cluster does when a group has not been used for long."""
    admin = broker.admin()
    groups = [decoded_prepared(each).lane for each in committables]
    for future in admin.delete_consumer_groups(groups).values():
        future.result(30)


# --- where a process dies --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", STEPS)
def test_a_writer_that_dies_leaves_each_record_once_when_its_checkpoint_is_restored(kafka_broker, tmp_path, step):
    topic = fresh_topic(kafka_broker, partitions=2)
    command = [kafka_broker.bootstrap, topic, str(tmp_path), f"run-{topic}", step]
    dead = subprocess.run([sys.executable, SUPPORT / "kafka_sink_rig.py", *command], check=False, timeout=120)
    assert dead.returncode == -9
    committable = (tmp_path / "committable").read_bytes()
    sink = sink_at(kafka_broker.bootstrap, topic, tmp_path, run="another")
    sink.commit([committable])
    assert numbers(kafka_broker, topic) == list(range(20))
    # The process that restored dies before its first checkpoint: the same is committed again.
    sink.commit([committable])
    assert numbers(kafka_broker, topic) == list(range(20))


def test_records_that_are_not_in_a_completed_checkpoint_are_never_in_the_topic_and_their_files_are_removed(
    kafka_broker, tmp_path
):
    topic = fresh_topic(kafka_broker)
    sink = sink_at(kafka_broker.bootstrap, topic, tmp_path)
    kept = prepared(sink, 1, rows(0, 5), subtask=1, parallelism=2)
    prepared(sink, 1, rows(5, 9), subtask=0, parallelism=2)
    assert numbers(kafka_broker, topic) == []
    sink.clean(context(subtask=0, epoch=2, parallelism=2), keep=[])
    sink.clean(context(subtask=1, epoch=2, parallelism=2), keep=kept)
    assert [place for _, place in sink.writing.files.places()] == [*decoded_prepared(kept[0]).places]
    sink.end("job")
    assert not sink.writing.files.places()


def test_an_old_owner_that_wakes_up_is_fenced_and_its_records_are_never_visible(kafka_broker, tmp_path):
    topic = fresh_topic(kafka_broker)
    sink = sink_at(kafka_broker.bootstrap, topic, tmp_path, run=f"run-{topic}")
    writer = sink.writer(context())
    writer.write(rows(0, 5))
    committables = writer.prepare(1)()
    piece = decoded_prepared(committables[0])
    lane = writer._replay._lane
    lane.open()
    lane.marker(piece)
    lane.begin()
    lane.produce(next(iter(sink.writing.read(piece))))
    sink.commit(committables)
    with pytest.raises(ExternalError, match="another process has taken over") as raised:  # noqa: PT012  # either may
        lane.mark(piece)
        lane.commit()
    assert raised.value.retry.value == "later"
    lane.close()
    assert numbers(kafka_broker, topic) == list(range(5))


def test_commits_that_are_made_again_do_nothing_also_when_the_lane_has_gone_on(kafka_broker, tmp_path):
    topic = fresh_topic(kafka_broker)
    sink = sink_at(kafka_broker.bootstrap, topic, tmp_path, run=f"run-{topic}")
    writer = sink.writer(context())
    pieces = []
    for checkpoint in (1, 2, 3):
        writer.write(rows(checkpoint * 10, checkpoint * 10 + 10))
        pieces.append(writer.prepare(checkpoint)())
        writer.commit(pieces[-1])
        writer.commit(pieces[-1])
    writer.close()
    for restored in (pieces[0], pieces[2], pieces[0] + pieces[1] + pieces[2]):
        sink.commit(restored)
    assert numbers(kafka_broker, topic) == list(range(10, 40))


def test_an_empty_transaction_leaves_nothing(kafka_broker, tmp_path):
    topic = fresh_topic(kafka_broker)
    writer = sink_at(kafka_broker.bootstrap, topic, tmp_path).writer(context())
    assert writer.prepare(1)() == []
    writer.close()


def test_two_jobs_from_one_savepoint_write_its_records_once(kafka_broker, tmp_path):
    topic = fresh_topic(kafka_broker)
    first = sink_at(kafka_broker.bootstrap, topic, tmp_path, run=f"run-{topic}")
    committables = prepared(first, 7, rows(0, 1_000))
    jobs = [sink_at(kafka_broker.bootstrap, topic, tmp_path, run=f"job-{n}-{topic}") for n in range(2)]

    def restore(sink):
        while True:
            try:
                sink.commit(committables)
            except ExternalError as error:
                assert error.retry.value == "later", error  # noqa: PT017  # and then the restore is tried again
            else:
                return

    threads = [threading.Thread(target=restore, args=(sink,)) for sink in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    assert numbers(kafka_broker, topic) == list(range(1_000))


def test_committables_of_several_lanes_are_committed_by_whoever_has_them_after_a_rescale(kafka_broker, tmp_path):
    topic = fresh_topic(kafka_broker)
    sink = sink_at(kafka_broker.bootstrap, topic, tmp_path, run=f"run-{topic}")
    parts = [prepared(sink, n, rows(n * 10, n * 10 + 10), subtask=n, parallelism=3) for n in range(3)]
    after = sink_at(kafka_broker.bootstrap, topic, tmp_path, run=f"after-{topic}")
    after.commit(parts[0] + parts[2])
    after.commit(parts[1])
    assert numbers(kafka_broker, topic) == list(range(30))


def test_the_broker_is_killed_during_a_commit_and_comes_back(kafka_broker, tmp_path):
    topic = fresh_topic(kafka_broker)
    sink = sink_at(kafka_broker.bootstrap, topic, tmp_path, run=f"run-{topic}")
    writer = sink.writer(context())
    writer.write(rows(0, 10))
    writer.commit(writer.prepare(1)())
    writer.write(rows(10, 20))
    committables = writer.prepare(2)()
    kafka_broker.kill()
    back = threading.Timer(3, kafka_broker.start)
    back.start()
    try:
        writer.commit(committables)
    except ExternalError as error:
        assert error.retry.value == "later"  # noqa: PT017  # either outcome is right, and this is what a failure says
    back.join()
    sink.commit(committables)
    writer.close()
    assert numbers(kafka_broker, topic) == list(range(20))


# --- what the cluster has forgotten ----------------------------------------------------------------------------------


def test_a_marker_that_may_be_forgotten_is_an_error_until_the_user_decides(kafka_broker, tmp_path, monkeypatch):
    topic = fresh_topic(kafka_broker)
    sink = sink_at(kafka_broker.bootstrap, topic, tmp_path, run=f"run-{topic}")
    committables = prepared(sink, 1, rows(0, 5))
    days_later(sink, 5, monkeypatch)
    days_later(sink, 30, monkeypatch)
    with pytest.raises(ExternalError, match=r"nobody knows whether 5 records .* 30 days ago .* after 7 days"):
        sink.commit(committables)
    assert numbers(kafka_broker, topic) == []
    sink_at(kafka_broker.bootstrap, topic, tmp_path, on_unknown="skip").commit(committables)
    assert numbers(kafka_broker, topic) == []
    committables = prepared(sink, 1, rows(0, 5), epoch=2)
    days_later(sink, 60, monkeypatch)
    sink_at(kafka_broker.bootstrap, topic, tmp_path, on_unknown="produce").commit(committables)
    assert numbers(kafka_broker, topic) == list(range(5))


def test_records_of_a_forgotten_marker_whose_files_are_gone_are_not_written_again(kafka_broker, tmp_path):
    topic = fresh_topic(kafka_broker)
    sink = sink_at(kafka_broker.bootstrap, topic, tmp_path, run=f"run-{topic}")
    committables = prepared(sink, 1, rows(0, 5))
    sink.commit(committables)
    forget_markers(kafka_broker, committables)
    with pytest.raises(UsageError, match="neither known to be written nor kept any more"):
        sink.commit(committables)
    assert numbers(kafka_broker, topic) == list(range(5))


def test_a_marker_topic_remembers_for_good(kafka_broker, tmp_path, monkeypatch):
    topic = fresh_topic(kafka_broker)
    markers = fresh_topic(kafka_broker, config={"cleanup.policy": "compact"})
    options = {"run": f"run-{topic}", "marker_topic": markers}
    sink = sink_at(kafka_broker.bootstrap, topic, tmp_path, **options)
    committables = prepared(sink, 1, rows(0, 5))
    sink.commit(committables)
    forget_markers(kafka_broker, committables)
    days_later(sink, 300, monkeypatch)
    sink.commit(committables)
    assert numbers(kafka_broker, topic) == list(range(5))


def test_a_topic_that_was_made_anew_is_refused(kafka_broker, tmp_path):
    topic = fresh_topic(kafka_broker)
    sink = sink_at(kafka_broker.bootstrap, topic, tmp_path, topic_id="another")
    with pytest.raises(ExternalError, match="was deleted and made anew"):
        sink.commit(prepared(sink, 1, rows(0, 5)))


# --- what records look like ------------------------------------------------------------------------------------------


def test_rows_become_values_keys_headers_and_partitions(kafka_broker, tmp_path):
    topics = [fresh_topic(kafka_broker, partitions=2) for _ in range(2)]
    encoding = {
        "format": "json", "value": ("n", "text"), "key": ("n",), "topic": "topic", "partition": "part",
        "headers": (("trace", "text"),),
    }  # fmt: skip
    sink = sink_at(kafka_broker.bootstrap, None, tmp_path, run=f"run-{topics[0]}", **encoding)
    batch = pa.record_batch(
        {"n": [1, 2, None], "text": ["a", None, "ü"], "topic": [topics[0], topics[1], topics[0]], "part": [0, 1, 1]}
    )
    sink.commit(prepared(sink, 1, batch))
    found = [
        (topics.index(m.topic()), m.partition(), m.key(), m.value(), m.headers())
        for m in committed(kafka_broker, topics)
    ]
    assert sorted(found, key=lambda each: each[:2]) == [
        (0, 0, b"1", b'{"n":1,"text":"a"}', [("trace", b"a")]),
        (0, 1, None, '{"n":null,"text":"ü"}'.encode(), [("trace", "ü".encode())]),
        (1, 1, b"2", b'{"n":2,"text":null}', None),
    ]


def test_a_changelog_becomes_upserts_and_tombstones(kafka_broker, tmp_path):
    topic = fresh_topic(kafka_broker, config={"cleanup.policy": "compact"})
    encoding = {"format": "json", "value": (), "key": ("user",), "is_changelog": True}
    sink = sink_at(kafka_broker.bootstrap, topic, tmp_path, run=f"run-{topic}", **encoding)
    kinds = ["insert", "insert", "update_before", "update_after", "delete"]
    batch = pa.record_batch({"user": ["a", "b", "a", "a", "b"], "n": [1, 5, 1, 2, 5], "row_kind": kinds})
    sink.commit(prepared(sink, 1, batch))
    assert [(m.key(), m.value()) for m in committed(kafka_broker, topic)] == [
        (b"a", b'{"user":"a","n":1}'),
        (b"b", b'{"user":"b","n":5}'),
        (b"a", b'{"user":"a","n":2}'),
        (b"b", None),
    ]


def test_many_records_keep_their_order_and_are_spilled_before_the_checkpoint(kafka_broker, tmp_path, monkeypatch):
    monkeypatch.setattr("penstock.connectors.kafka.writing.BUFFER_BYTES", 20_000)
    topic = fresh_topic(kafka_broker)
    sink = sink_at(kafka_broker.bootstrap, topic, tmp_path, run=f"run-{topic}")
    writer = sink.writer(context())
    for first in range(0, 50_000, 1_000):
        writer.write(rows(first, first + 1_000))
    (committable,) = writer.prepare(1)()
    assert len(decoded_prepared(committable).places) > 5
    writer.commit([committable])
    writer.close()
    assert values(kafka_broker, topic) == [str(n).encode() for n in range(50_000)]
    assert not sink.writing.files.places()


def test_records_that_are_too_large_are_refused_before_the_checkpoint(kafka_broker, tmp_path):
    sink = sink_at(kafka_broker.bootstrap, fresh_topic(kafka_broker), tmp_path)
    with pytest.raises(UsageError, match="has 2000000 bytes, and the client sends at most 1000000"):
        prepared(sink, 1, pa.record_batch({"value": ["x" * 2_000_000]}))


def test_at_least_once_has_all_records_when_the_checkpoint_is_prepared(kafka_broker, tmp_path):
    topic = fresh_topic(kafka_broker)
    sink = sink_at(kafka_broker.bootstrap, topic, tmp_path, delivery="at-least-once")
    writer = sink.writer(context())
    for first in range(0, 5_000, 1_000):
        writer.write(rows(first, first + 1_000))
    assert writer.prepare(1)() == []
    assert numbers(kafka_broker, topic) == list(range(5_000))
    writer.close()


def test_an_open_transaction_of_another_writer_holds_nothing_up_here(kafka_broker, tmp_path):
    topic = fresh_topic(kafka_broker)
    other = Producer({"bootstrap.servers": kafka_broker.bootstrap, "transactional.id": f"other-{topic}"})
    other.init_transactions(30)
    other.begin_transaction()
    other.produce(topic, value=b"99")
    other.flush(30)
    sink = sink_at(kafka_broker.bootstrap, topic, tmp_path, run=f"run-{topic}")
    sink.commit(prepared(sink, 1, rows(0, 5)))
    other.abort_transaction(30)
    assert numbers(kafka_broker, topic) == list(range(5))
