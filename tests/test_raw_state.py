"""Whole jobs of functions that write bytes of their own format into checkpoints."""

from __future__ import annotations

import struct
from collections import Counter

import pyarrow as pa
import pytest
from state_rig import LOCAL_DIRECTORY

import penstock as ps
from penstock.core.errors import JobFailed
from penstock.runtime.task.operators import keyed
from penstock.settings import StateSettings
from penstock.state.rocksdb.backend import RocksBackend
from penstock.testing import collect, crash, pause, run, scripted

SEEDS = range(4)
USERS = 23
ROWS = [{"n": n, "user": n % USERS} for n in range(120)]
SCHEMA = "n bigint, user bigint"
COUNTED = struct.Struct(">qq")


def slowly(rows):
    """The rows with pauses in which checkpoints are taken, and a crash after each of some."""
    script = []
    for number, row in enumerate(rows):
        script.append(row)
        if number % 20 == 9:
            script.append(pause(150))
        if number % 40 == 33:
            script.append(crash())
    return script


class CountsByGroup(ps.KeyedFunction):
    """Counts in attributes, and packs the counts of each key group when they are about to be saved."""

    counts = ps.raw_keyed_state("counts")
    managed = ps.value_state("managed", "bigint", default=0)

    def open(self, context):
        self.by_group = {group: Counter(dict(COUNTED.iter_unpack(data))) for group, data in self.counts.items()}
        assert set(self.by_group) <= set(self.counts.groups)

    def on_row(self, row, context):
        counts = self.by_group.setdefault(context.key_group, Counter())
        counts[context.key] += 1
        self.managed.set(self.managed.get() + 1)
        return {"n": counts[context.key] - self.managed.get(), "user": context.key}

    def on_snapshot(self, checkpoint):
        self.counts.clear()
        for group, counts in self.by_group.items():
            self.counts.set(group, bytearray(b"".join(COUNTED.pack(*found) for found in counts.items())))

    def on_end(self, context):
        assert context.key_group is None
        return ({"n": n, "user": user} for counts in self.by_group.values() for user, n in counts.items())


@pytest.fixture(params=["memory", "rocksdb"])
def backend(request, monkeypatch):
    if request.param == "rocksdb":
        settings = StateSettings(backend="rocksdb", local_directory=LOCAL_DIRECTORY)
        monkeypatch.setattr(
            keyed,
            "make_backend",
            lambda context: RocksBackend(type(context)(**{**vars(context), "settings": settings})),
        )


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("parallelism", [1, 3])
def test_raw_keyed_state_goes_back_to_the_checkpoint_with_everything_else(seed, parallelism):
    def build(env):
        rows = env.read(scripted(slowly(ROWS[:70]), slowly(ROWS[70:]), schema=SCHEMA)).key_by("user")
        rows.process(CountsByGroup(), schema=SCHEMA).write(collect())

    found = run(build, seed=seed, parallelism=parallelism, crashes=2)
    assert [row["n"] for row in found].count(0) == len(ROWS), "raw and managed state tell the same"
    assert Counter({row["user"]: row["n"] for row in found if row["n"]}) == Counter(row["user"] for row in ROWS)


class Buffered(ps.ProcessFunction):
    """Holds rows back as Arrow's own bytes."""

    held = ps.raw_split_list_state("held")
    seen = ps.raw_union_list_state("seen")

    def open(self, context):
        self.rows = [row for data in self.held.get() for row in pa.ipc.open_stream(data).read_all().to_pylist()]
        seen = self.seen.get()
        assert not seen or (len(seen) == context.parallelism and len(set(seen)) == 1), "every subtask gets those of all"

    def on_row(self, row, context):
        self.rows.append(row)

    def on_snapshot(self, checkpoint):
        table = pa.Table.from_pylist(self.rows, pa.schema([("n", pa.int64()), ("user", pa.int64())]))
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        self.held.set([memoryview(sink.getvalue())])
        self.seen.set([b"%d" % checkpoint])

    def on_end(self, context):
        return self.rows


@pytest.mark.parametrize("seed", SEEDS)
def test_raw_lists_go_back_to_the_checkpoint(seed):
    def build(env):
        rows = env.read(scripted(slowly(ROWS[:50]), slowly(ROWS[50:]), schema=SCHEMA))
        rows.process(Buffered(), schema=SCHEMA).write(collect())

    found = run(build, seed=seed, parallelism=2, crashes=2)
    assert sorted(row["n"] for row in found) == list(range(len(ROWS)))


def test_what_is_not_bytes_is_refused_when_it_is_given():
    class Odd(CountsByGroup):
        def on_row(self, row, context):
            self.counts.set(context.key_group, "text")

    class OddList(ps.ProcessFunction):
        held = ps.raw_split_list_state("held")

        def on_row(self, row, context):
            self.held.add("text")

    def by_key(env):
        env.read(scripted(ROWS[:3], schema=SCHEMA)).key_by("user").process(Odd(), schema=SCHEMA).write(collect())

    def by_list(env):
        env.read(scripted(ROWS[:3], schema=SCHEMA)).process(OddList(), schema=SCHEMA).write(collect())

    with pytest.raises(JobFailed, match="state 'counts' is raw, and takes bytes; 'text' is not bytes"):
        run(by_key)
    with pytest.raises(JobFailed, match="state 'held' is raw, and takes bytes; 'text' is not bytes"):
        run(by_list)


def test_a_key_group_of_another_subtask_is_refused():
    class Odd(CountsByGroup):
        def on_row(self, row, context):
            self.counts.set((context.key_group + 64) % 128, b"1")

    def build(env):
        env.read(scripted(ROWS[:3], schema=SCHEMA)).key_by("user").process(Odd(), schema=SCHEMA).write(collect())

    with pytest.raises(JobFailed, match=r"used for key group \d+; this subtask owns (0 to 63|64 to 127)"):
        run(build, parallelism=2)


def test_raw_keyed_state_needs_a_key():
    class NoKeys(ps.ProcessFunction):
        counts = ps.raw_keyed_state("counts")

        def on_row(self, row, context):
            return row

    def build(env):
        env.read(scripted(ROWS, schema=SCHEMA)).process(NoKeys(), schema=SCHEMA)

    with pytest.raises(ps.UsageError, match="declares raw-keyed state 'counts', which needs a key"):
        run(build)
