"""A look at a stream: real operators and sources in this process, without checkpoints."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

import penstock as ps
from penstock.api.connector import Found, Pause, Source, SourceReader, SplitEnumerator
from penstock.api.program import Program
from penstock.connectors import nexmark
from penstock.core.ids import Instant
from penstock.runtime.in_process import SeenRows, look
from penstock.settings import JobSettings
from penstock.spark.looking import SparkRunner


class Clock:
    """Time passes only while it is waited for."""

    def __init__(self):
        self.ms = 1_000

    def now(self):
        return Instant(self.ms)

    def precise_ms(self):
        return float(self.ms)

    def wait(self, seconds):
        self.ms += max(1, round(1_000 * seconds))


class LookingRunner(SparkRunner):
    """The runner of an environment, without Spark."""

    def __init__(self, clock):
        super().__init__(None, run=lambda plan: pytest.fail(f"{plan} is a job"), look=self._here)
        self._clock = clock

    def _here(self, plan, *, rows, timeout_ms):
        vertices = plan.vertices

        def ready(operator):
            step = operator.step
            is_source = hasattr(step, "source")
            return replace(operator, step=replace(step, splits=tuple(step.source.splits(1)))) if is_source else operator

        plan = replace(plan, vertices=tuple(replace(v, operators=tuple(map(ready, v.operators))) for v in vertices))
        clock = self._clock
        return look(plan, JobSettings(), rows=rows, timeout_ms=timeout_ms, clock=clock, wait=clock.wait)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def program(clock):
    return Program(JobSettings(parallelism=3), runner=LookingRunner(clock))


def bids(program, events=1_000):
    return program.read(nexmark.bids(events=events, splits=2))


def test_take_gives_the_first_rows_and_no_more(program):
    found = bids(program).where("price > 0").select("auction", twice="price * 2").take(3)
    assert len(found) == 3
    assert list(found[0]) == ["auction", "twice"]


def test_a_stream_that_ends_sooner_gives_all_its_rows(program):
    assert len(bids(program, events=7).take(100)) == 7


def test_windows_and_state_by_key_work_across_channels_until_the_end(program):
    class Counting(ps.KeyedFunction):
        n = ps.value_state("n", "bigint", default=0)

        def on_row(self, row, context):
            self.n.set(self.n.get() + 1)
            yield {"auction": row["auction"], "n": self.n.get()}

    function = Counting()
    stream = bids(program)
    windows = stream.watermark("ts").key_by("auction").window(ps.tumbling("10s")).aggregate(n=ps.count())
    assert sum(row["n"] for row in windows.take(10_000)) == 1_000
    counted = stream.key_by("auction").process(function, schema="auction bigint, n bigint")
    first = counted.take(10_000)
    assert len(first) == 1_000
    assert counted.take(10_000) == first, "a look leaves nothing in the function of the program"


class Tally:
    """A function with something of its own."""

    def __init__(self):
        self.calls = 0

    def __call__(self, row):
        self.calls += 1
        return {"n": self.calls}


def test_a_look_leaves_the_functions_of_the_program_as_they_were(program):
    tally = Tally()
    stream = bids(program).map(tally, schema="n bigint")
    for _ in range(2):
        assert stream.take(2) == [{"n": 1}, {"n": 2}]
    assert tally.calls == 0


def test_streams_that_are_united_are_all_read(program):
    first, second = bids(program, events=5), program.read(nexmark.bids(events=4), name="more")
    assert len(first.union(second).take(100)) == 9


def test_a_look_leaves_the_program_as_it_was(program):
    stream = bids(program)
    before = program.explain()
    stream.take(1)
    assert program.explain() == before
    stream.write(ps.collect())
    assert [o.name for v in program.plan().vertices for o in v.operators] == ["bids", "collect"]


def test_steps_that_lead_only_to_a_look_are_no_part_of_the_job(program):
    stream = bids(program)
    stream.write(ps.collect())
    expected = repr(program.plan())
    stream.where("price > 10").select("auction").take(1)
    stream.watermark("ts").key_by("auction").window(ps.tumbling("10s")).aggregate(n=ps.count()).take(1)
    assert repr(program.plan()) == expected


def test_steps_that_nobody_used_are_still_told(program):
    stream = bids(program)
    with pytest.raises(ps.UsageError, match="nothing is done with the results of 'bids'"):
        program.plan()
    stream.take(1)
    with pytest.raises(ps.UsageError, match="the program has no steps"):
        program.plan()
    stream.where("price > 10")
    with pytest.raises(ps.UsageError, match="nothing is done with the results of 'where'"):
        program.plan()


def test_an_error_of_a_function_names_its_step(program):
    broken = bids(program).map(lambda row: {"n": 1 / 0}, schema="n int", name="my step")
    with pytest.raises(ps.JobFailed, match=r"(?s)failed in 'my step'.*ZeroDivisionError"):
        broken.take(1)


class Silent(Source):
    """Two rows, and then nothing for ever; with an enumerator, the rows are found only after a while."""

    def __init__(self, finds=False):  # as it is unpickled
        self.finds = finds

    schema = pa.schema([("n", pa.int64())])
    is_unbounded = True

    def __reduce__(self):
        """A slot has no enumerator."""
        return InSlot, (self.finds,)

    @property
    def discovers(self):
        return self.finds

    def splits(self, parallelism):
        return [] if self.finds else [b"0"]

    def enumerator(self):
        return Later()

    def open(self, splits):
        return SilentReader(len(splits))


class InSlot(Silent):
    def enumerator(self):
        raise NotImplementedError


class SilentReader(SourceReader):
    def __init__(self, left):
        self.left = left

    def poll(self, max_rows, now_ms):
        if not self.left:
            return Pause(50)
        self.left -= 1
        return pa.record_batch({"n": pa.array([1, 2], pa.int64())})

    def add_splits(self, splits):
        self.left += len(splits)

    def snapshot(self):
        return []


class Later(SplitEnumerator):
    def discover(self, position):
        looks = int(position or b"0") + 1
        return Found(position=str(looks).encode(), splits=[b"x"] if looks == 3 else [], wait_ms=20)


def test_rows_of_a_stream_that_does_not_end_are_waited_for_no_longer_than_is_said(program, clock):
    stream = program.read(Silent())
    assert stream.take(2) == [{"n": 1}, {"n": 2}]
    assert clock.ms < 1_100
    assert stream.take(3, timeout="3s") == [{"n": 1}, {"n": 2}]
    assert 4_000 <= clock.ms < 5_200
    stream.take(3)
    assert clock.ms >= 14_000


def test_splits_that_are_found_meanwhile_are_read(program):
    assert program.read(Silent(finds=True)).take(2) == [{"n": 1}, {"n": 2}]


def test_a_stream_that_does_not_end_is_not_collected(program):
    with pytest.raises(ps.UsageError, match="collect needs a stream that ends"):
        program.read(Silent()).collect()


def test_show_prints_a_table_as_spark_does(program, capsys):
    stream = program.read(Silent())
    stream.show(1)
    assert capsys.readouterr().out == "+---+\n|  n|\n+---+\n|  1|\n+---+\nonly showing top 1 row\n"
    stream.show(2, timeout="1s")
    assert capsys.readouterr().out == "+---+\n|  n|\n+---+\n|  1|\n|  2|\n+---+\n"


def test_wrong_arguments_are_told(program):
    stream = bids(program)
    for call in (lambda: stream.take(0), lambda: stream.show(-1), lambda: stream.collect("table")):
        with pytest.raises(ps.UsageError):
            call()
    with pytest.raises(ps.UsageError, match="needs an environment"):
        Program().read(nexmark.bids(events=1)).take(1)


def test_nothing_is_kept_beyond_what_was_asked_for():
    seen = SeenRows(3)
    for _ in range(3):
        seen.take(pa.record_batch({"n": [1, 2]}))
    assert (sum(batch.num_rows for batch in seen.batches), seen.is_full) == (3, True)
