"""A sink into a real broker, with its files in a folder; and, as a program, a writer that dies at one step."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pyarrow as pa

from penstock.api.connector import WriterContext
from penstock.connectors.kafka.connection import connection
from penstock.connectors.kafka.encoding import Encoding
from penstock.connectors.kafka.lanes import KafkaLane, Target
from penstock.connectors.kafka.sink import TopicSink
from penstock.connectors.kafka.writing import Writing
from penstock.spark.kept_files import StoredFiles

STEPS = ("open", "begin", "produce", "mark", "commit-before", "commit-during", "commit-after")


def sink_at(bootstrap, target_topic, root, *, run="run", topic_id="", on_unknown="fail", marker_topic=None, **encoding):
    """A sink as a job has it."""
    delivery = encoding.pop("delivery", "exactly-once")
    target = Target(cluster=connection(bootstrap, None), topic=target_topic, marker_topic=marker_topic)
    return TopicSink(
        writing=Writing(
            target=target,
            encoding=Encoding(**({"format": "raw", "value": ("value",)} | encoding)),
            files=StoredFiles(root=str(root), folder="results/job/sink"),
            run=run,
            topic_id=topic_id,
            on_unknown=on_unknown,
        ),
        folder="results/job/sink",
        delivery=delivery,
    )


def rows(first, stop):
    """Rows that are numbers, as texts."""
    return pa.record_batch({"value": pa.array([str(n) for n in range(first, stop)])})


def context(subtask=0, epoch=1, parallelism=1):
    return WriterContext(job="job", subtask=subtask, parallelism=parallelism, epoch=epoch)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _commit_and_die_meanwhile(self, commit=KafkaLane.commit) -> None:
    """The commit is on its way, and nobody hears the answer."""
    threading.Timer(0.002, _die).start()
    commit(self)
    time.sleep(10)


def _patch(step: str) -> None:
    kind, _, when = step.partition("-")
    original = getattr(KafkaLane, kind)
    if when == "during":
        KafkaLane.commit = _commit_and_die_meanwhile
        return

    def dying(self, *given):
        if when == "before":
            self._producer.flush(30)
            _die()
        original(self, *given)
        if kind == "produce":
            self._producer.flush(30)
        _die()

    setattr(KafkaLane, kind, dying)


if __name__ == "__main__":
    bootstrap, topic, root, run, step = sys.argv[1:]
    sink = sink_at(bootstrap, topic, root, run=run)
    writer = sink.writer(context())
    # Checkpoint 1 is committed, so that the lane has a marker and a living producer.
    writer.write(rows(0, 10))
    writer.commit(writer.prepare(1)())
    writer.write(rows(10, 20))
    (committable,) = writer.prepare(2)()
    Path(root, "committable").write_bytes(committable)
    if step == "open":
        _die()
    _patch(step)
    writer.commit([committable])
