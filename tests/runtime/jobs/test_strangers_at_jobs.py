"""A job whose processes are called over TCP by strangers, who claim to send what no process could hold."""

from __future__ import annotations

import contextlib
import resource
import socket
import struct

import pyarrow as pa
import pyarrow.parquet as pq
from json_splits import SplitReader, SplitSource
from threaded_jobs import settings, with_splits

from penstock.api.connector import End, Pause
from penstock.api.program import Program
from penstock.connectors.parquet import parquet
from penstock.core.job.events import JobState

ROWS = 2_000
SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)
CLAIM = GREETING + b"\x06" + struct.pack(">Q", 2_000_000_000)
STRANGERS = 8
SENT_BYTES = 40_000_000
HELD_KB = 400 * 1_024
"""More than the job itself needs, and less than half of what the strangers of three processes send."""
LARGE = "x" * 3_000_000
"""One row has more than goes over in a single frame."""


class Reader(SplitReader):
    """Numbers from 0 on; the second half waits for the gate."""

    def poll(self, max_rows: int, now_ms: int):
        if not self._splits:
            return End()
        split = self._splits[0]
        if split["at"] >= ROWS // 2 and not self._gate.exists():
            return Pause(1)
        numbers = range(split["at"], split["at"] + 50)
        split["at"] += 50
        if split["at"] >= ROWS:
            self._splits.pop(0)
        texts = [LARGE if n == 10 else "" for n in numbers]
        return pa.record_batch({"n": list(numbers), "text": texts}, schema=SCHEMA)


def call_as_stranger(address: str, stack: contextlib.ExitStack) -> None:
    port = int(address.rpartition(":")[2])
    stranger = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
    with contextlib.suppress(OSError):
        stranger.sendall(CLAIM)
        for _ in range(SENT_BYTES // 1_000_000):
            stranger.sendall(bytes(1_000_000))


def test_strangers_cost_no_process_of_a_job_its_memory_and_the_job_goes_on(threaded_job, tmp_path):
    gate, out = tmp_path / "gate", tmp_path / "out"
    chosen = settings()
    program = Program(chosen)
    source = SplitSource(SCHEMA, [{"number": i, "at": 0} for i in (0, 1)], Reader, gate)
    program.read(source).rebalance().write(parquet(str(out)))
    running = threaded_job(with_splits(program.plan()), chosen, tcp=True)
    before: list[int] = []

    with contextlib.ExitStack() as stack:

        def each_turn(job) -> None:
            if before or not job.driver.view().checkpoints.counts.completed:
                return
            before.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
            slots = [registered.tcp_address for registered in job.driver._links.registered.values()]
            assert len(slots) == 2
            for address in (job.transport.tcp_address, *slots):
                for _ in range(STRANGERS):
                    call_as_stranger(address, stack)
            gate.touch()

        assert running.run(each_turn) is JobState.FINISHED
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before[0] < HELD_KB
    assert running.driver.view().restarts == 0
    found = pq.read_table(out).to_pylist()
    assert sorted(row["n"] for row in found) == sorted([*range(ROWS)] * 2)
    assert [len(row["text"]) for row in found if row["text"]] == [len(LARGE)] * 2
