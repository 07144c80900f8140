"""Whole jobs of functions and sinks that have a part in checkpoints, in a simulated cluster whose processes die."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pyarrow as pa
import pytest

import penstock as ps
from penstock.core.errors import JobFailed, StorageError
from penstock.runtime.task import snapshots
from penstock.testing import collect, crash, pause, run, runs, scripted

SEEDS = range(4)
ROWS = [{"n": n, "user": n % 3} for n in range(60)]
SCHEMA = "n bigint, user bigint"


def slowly(rows):
    """The rows with pauses in which checkpoints are taken, and a crash after each of some."""
    script = []
    for number, row in enumerate(rows):
        script.append(row)
        if number % 10 == 4:
            script.append(pause(150))
        if number % 20 == 16:
            script.append(crash())
    return script


class HeldInAttributes(ps.ProcessFunction):
    """Declares no state: what it holds back goes out before every barrier."""

    def open(self, context):
        self.held = []

    def on_row(self, row, context):
        self.held.append(row)
        if len(self.held) >= 7:
            return self.before_barrier(context)
        return None

    def before_barrier(self, context):
        held, self.held = self.held, []
        return held


class HeldByKey(ps.KeyedFunction):
    """The same behind an exchange, one row per user and barrier."""

    def open(self, context):
        self.held = defaultdict(list)

    def on_row(self, row, context):
        self.held[context.key].append(row["n"])

    def before_barrier(self, context):
        assert context.key is None
        held, self.held = self.held, defaultdict(list)
        return ({"n": n, "user": user} for user, numbers in held.items() for n in numbers)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("parallelism", [1, 2])
def test_what_a_function_holds_back_goes_out_before_the_barrier_and_is_not_lost(seed, parallelism):
    def build(env):
        rows = env.read(scripted(slowly(ROWS), schema=SCHEMA)).process(HeldInAttributes(), schema=SCHEMA)
        rows.key_by("user").process(HeldByKey(), schema=SCHEMA).write(collect())

    found = run(build, seed=seed, parallelism=parallelism, crashes=3)
    assert sorted(row["n"] for row in found) == list(range(60))


@pytest.mark.parametrize("seed", SEEDS)
def test_partial_aggregates_that_are_held_back_are_not_lost_with_a_slot(seed):
    rows = [{"k": n % 4, "ts": n * 100_000} for n in range(80)]

    def build(env):
        read = env.read(scripted(slowly(rows[:50]), slowly(rows[50:]), schema="k bigint, ts timestamp"))
        windows = read.watermark("ts", delay="1s").key_by("k").window(ps.tumbling("2s"))
        windows.aggregate(n=ps.count()).write(collect())

    found = run(build, seed=seed, parallelism=2, crashes=3)
    assert sum(row["n"] for row in found) == 80
    assert {row["n"] for row in found} == {5}


class Batching(ps.SinkWriter):
    """Writes in one go what came between two barriers."""

    def __init__(self, inner) -> None:
        self._inner = inner
        self._held: list[pa.RecordBatch] = []

    def write(self, batch):
        self._held.append(batch)

    def before_barrier(self):
        for batch in pa.Table.from_batches(self._held).to_batches() if self._held else ():
            self._inner.write(batch)
        self._held = []
        self._inner.before_barrier()

    def prepare(self, checkpoint):
        assert not self._held
        return self._inner.prepare(checkpoint)


class BatchingSink(type(collect())):
    def writer(self, context):
        return Batching(super().writer(context))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_writer_hands_over_what_it_holds_before_its_transaction_is_closed(seed):
    def build(env):
        env.read(scripted(slowly(ROWS), schema=SCHEMA)).write(BatchingSink())

    found = run(build, seed=seed, parallelism=2, crashes=2)
    assert sorted(row["n"] for row in found) == list(range(60))


TOLD: dict[str, list[tuple[int, str, int]]] = {}
"""By test: (subtask, what, checkpoint), in the order of calls. A simulated cluster is in this process."""


class Telling:
    def __init__(self, test: str) -> None:
        self._test = test

    def open(self, context):
        self._subtask = context.subtask
        self._tell("open", 0)

    def _tell(self, what: str, checkpoint: int) -> None:
        TOLD[self._test].append((self._subtask, what, checkpoint))

    def on_snapshot(self, checkpoint):
        self._tell("snapshot", checkpoint)
        if hasattr(self, "counted"):
            self.counted.set([self.seen])

    def on_checkpoint_complete(self, checkpoint):
        self._tell("complete", checkpoint)

    def on_checkpoint_subsumed(self, checkpoint):
        self._tell("subsumed", checkpoint)

    def on_checkpoint_aborted(self, checkpoint):
        self._tell("aborted", checkpoint)


class TellingRows(Telling, ps.ProcessFunction):
    """Counts in an attribute, which it puts into declared state only when that is about to be saved."""

    counted = ps.split_list_state("counted", "bigint")

    def open(self, context):
        super().open(context)
        self.seen = sum(self.counted.get())

    def on_row(self, row, context):
        self.seen += 1
        return row

    def on_end(self, context):
        return {"n": -1 - self.seen, "user": context.subtask}


class TellingKeys(Telling, ps.KeyedFunction):
    def on_row(self, row, context):
        return row


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("keyed", [False, True])
def test_functions_hear_of_every_checkpoint_that_they_took_part_in(request, seed, keyed):
    told = TOLD[request.node.name] = []

    def build(env):
        rows = env.read(scripted(slowly(ROWS), schema=SCHEMA))
        if keyed:
            rows = rows.key_by("user").process(TellingKeys(request.node.name), schema=SCHEMA)
        else:
            rows = rows.process(TellingRows(request.node.name), schema=SCHEMA)
        rows.write(collect())

    found = run(build, seed=seed, parallelism=2, crashes=2)
    assert sorted(row["n"] for row in found if row["n"] >= 0) == list(range(60))
    if not keyed:
        assert sum(-1 - row["n"] for row in found if row["n"] < 0) == 60
    complete = [(subtask, checkpoint) for subtask, what, checkpoint in told if what == "complete"]
    snapshots = [(subtask, checkpoint) for subtask, what, checkpoint in told if what == "snapshot"]
    assert complete
    assert set(complete) <= set(snapshots)
    for subtask, checkpoint in complete:
        assert told.index((subtask, "snapshot", checkpoint)) < told.index((subtask, "complete", checkpoint))
    subsumed = [(place, *entry) for place, entry in enumerate(told) if entry[1] == "subsumed"]
    assert subsumed
    for place, subtask, _, checkpoint in subsumed:
        known = [c for known, what, c in told[:place] if (known, what) == (subtask, "complete")]
        assert max(known) > checkpoint, "only a newer one that is complete makes it superfluous"


@pytest.fixture
def _failing_write(monkeypatch):
    """The first snapshot that a task writes cannot be stored: its checkpoint is declined, and aborted for all."""
    honest, failures = snapshots.write_snapshot, []

    def write(work, files):
        if not failures:
            failures.append(1)
            raise StorageError("disk full")
        return honest(work, files)

    def tolerant(*given):
        made = settings_of(*given)
        return replace(made, checkpoint=replace(made.checkpoint, tolerable_failures=None))

    settings_of = runs._settings
    monkeypatch.setattr(runs, "_settings", tolerant)
    monkeypatch.setattr(snapshots, "write_snapshot", write)


@pytest.mark.usefixtures("_failing_write")
@pytest.mark.parametrize("kind", [TellingRows, TellingKeys])
def test_functions_hear_of_a_checkpoint_that_is_aborted(request, kind):
    told = TOLD[request.node.name] = []

    def build(env):
        rows = env.read(scripted(slowly(ROWS), schema=SCHEMA))
        rows = rows.key_by("user") if kind is TellingKeys else rows
        rows.process(kind(request.node.name), schema=SCHEMA).write(collect())

    found = run(build, seed=1, parallelism=2)
    assert sorted(row["n"] for row in found if row["n"] >= 0) == list(range(60))
    aborted = [(subtask, checkpoint) for subtask, what, checkpoint in told if what == "aborted"]
    assert {subtask for subtask, _ in aborted} == {0, 1}
    for subtask, checkpoint in aborted:
        assert told.index((subtask, "snapshot", checkpoint)) < told.index((subtask, "aborted", checkpoint))
        assert (subtask, "complete", checkpoint) not in told


def fail(function, *given):
    raise ValueError("no more")


@pytest.mark.usefixtures("_failing_write")
@pytest.mark.parametrize(
    "method",
    ["before_barrier", "on_snapshot", "on_checkpoint_complete", "on_checkpoint_subsumed", "on_checkpoint_aborted"],
)
def test_what_these_methods_raise_names_the_step(method):
    kind = type("Odd", (ps.KeyedFunction,), {"on_row": lambda function, row, context: row, method: fail})

    def build(env):
        env.read(scripted(slowly(ROWS), schema=SCHEMA)).key_by("user").process(kind(), schema=SCHEMA, name="odd").write(
            collect()
        )

    with pytest.raises(JobFailed, match=r"odd.*no more"):
        run(build, seed=1)
