"""Async calls to a server on loopback, on a real Spark one of whose workers is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import cloudpickle
import pytest
from waiting import wait_until

import penstock as ps
from penstock.core.job.events import JobState

# What is defined here goes to the workers by value: they cannot import a test module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

ROWS = 4_000


class Server:
    """Answers a number with its square. Remembers what was asked, and how many questions were open at the same time."""

    def __init__(self) -> None:
        self.asked: Counter[int] = Counter()
        self.most_open = 0
        self._open = 0
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.port = 0

    def __enter__(self) -> Server:
        self._thread.start()
        assert self._ready.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()

    def _run(self) -> None:
        async def start() -> asyncio.Server:
            server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
            self.port = server.sockets[0].getsockname()[1]
            self._ready.set()
            return server

        server = self._loop.run_until_complete(start())
        self._loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0.1))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            number = int(line)
            self.asked[number] += 1
            self._open += 1
            self.most_open = max(self.most_open, self._open)
            await asyncio.sleep(0.002)
            self._open -= 1
            writer.write(f"{number * number}\n".encode())
        writer.close()


class Squares(ps.AsyncFunction):
    """Asks the server, over as many connections as questions are open. The process dies once, after a checkpoint."""

    def __init__(self, port: int, checkpoints: Path, killed: Path, closed: Path) -> None:
        self._port = port
        self._checkpoints = checkpoints
        self._killed = killed
        self._closed = closed

    async def open(self, context: ps.FunctionContext) -> None:
        self._subtask = context.subtask
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def on_row(self, row):
        if not self._killed.exists():
            if any(self._checkpoints.glob("*/completed/[0-9]*")):
                self._killed.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            # The data must not end before the first checkpoint has completed.
            await asyncio.sleep(0.05)
        reader, writer = self._free.pop() if self._free else await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(f"{row['id']}\n".encode())
        square = int(await reader.readline())
        self._free.append((reader, writer))
        return {"id": row["id"], "square": square}

    async def close(self) -> None:
        for _, writer in self._free:
            writer.close()
        (self._closed / str(self._subtask)).touch()


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as serving:
        yield serving


@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])
def test_every_answer_comes_out_once_although_a_worker_is_killed(spark, tmp_path, server, ordered):
    checkpoints, killed, closed = tmp_path / "checkpoints", tmp_path / "killed", tmp_path / "closed"
    closed.mkdir()
    env = ps.Environment(
        spark,
        parallelism=2,
        checkpointing=ps.Checkpointing(interval="100ms", directory=checkpoints),
        restart=ps.fixed_delay(attempts=3, delay="0s"),
    )
    squares = Squares(server.port, checkpoints, killed, closed)
    asked = env.from_dataframe(spark.range(ROWS)).async_map(
        squares, concurrency=4, ordered=ordered, timeout="30s", schema="id bigint, square bigint"
    )
    asked.write(ps.parquet(str(tmp_path / "out")))
    view = env.run(f"squares-{ordered}")
    assert view.state is JobState.FINISHED
    assert killed.exists()
    assert view.restarts >= 1
    found = spark.read.parquet(str(tmp_path / "out"))
    assert sorted((row.id, row.square) for row in found.collect()) == [(n, n * n) for n in range(ROWS)]
    assert sorted(server.asked) == list(range(ROWS))
    # Each of the two subtasks has four questions open, and a process that was killed may have left as many.
    assert server.most_open <= 16
    assert sorted(path.name for path in closed.iterdir()) == ["0", "1"]


class Hangs(ps.AsyncFunction):
    """Never answers, and does not let itself be cancelled."""

    def __init__(self, begun: Path) -> None:
        self._begun = begun

    async def on_row(self, row):
        self._begun.touch()
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue


def test_a_call_that_hangs_keeps_no_slot_from_leaving(spark, tmp_path):
    begun = tmp_path / "begun"
    env = ps.Environment(spark, parallelism=1, checkpointing=ps.Checkpointing(interval="100ms", directory=tmp_path))
    hanging = env.from_dataframe(spark.range(10)).async_map(Hangs(begun), timeout="10 min", schema="id bigint")
    hanging.write(ps.parquet(str(tmp_path / "out")))
    job = env.start("hangs")
    wait_until(job, lambda view: begun.exists() and view.checkpoints.counts.completed)
    job.cancel()
    with pytest.raises(ps.JobCancelled):
        job.wait(60)
