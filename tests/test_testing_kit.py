"""The testing kit: scripts are read as written, what dies changes no result, and one seed gives one run."""

from __future__ import annotations

import asyncio
import sys
import textwrap
import traceback
from collections import Counter
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
import penstock.testing
from penstock.api.connector import End, Pause, SinkWriter
from penstock.sim.slots import SlotHost
from penstock.testing import collect, crash, pause, run, scripted

WORDS = [
    "to",
    "be",
    "or",
    "not",
    "to",
    "be",
    "that",
    "is",
    "the",
    "question",
    "whether",
    "tis",
    "nobler",
    "to",
    "suffer",
]
SECOND_US = 1_000_000


def said(words, *, first_us=0):
    """One word a second."""
    return [{"word": word, "at": first_us + i * SECOND_US} for i, word in enumerate(words)]


def lines(*scripts, **changes):
    return scripted(*scripts, schema="word string, at timestamp", **changes)


def word_counts(env, source, results, delay="2s"):
    words = env.read(source).watermark("at", delay=delay).where("word <> 'the'")
    words.key_by("word").window(ps.tumbling("5s")).aggregate(n=ps.count(), last=ps.max("at")).write(results)


def counted(rows):
    return Counter({(row["word"], row["window_start"].timestamp()): row["n"] for row in rows})


def expected_counts(*scripts):
    records = [row for script in scripts for row in script if isinstance(row, dict) and row["word"] != "the"]
    return Counter((row["word"], row["at"] // SECOND_US // 5 * 5) for row in records)


@pytest.fixture
def deaths(monkeypatch):
    """The processes that died in runs of the test, one entry each."""
    found = []
    original = SlotHost.crash

    def counting(self, slot, notice):
        found.append(slot.number)
        original(self, slot, notice)

    monkeypatch.setattr(SlotHost, "crash", counting)
    return found


# --- runs ------------------------------------------------------------------------------------------------------------


def test_the_example_of_the_documentation_works():
    text = penstock.testing.__doc__
    example = textwrap.dedent(text[text.index("    import penstock as ps") : text.index("The seed also decides")])
    names = {}
    exec(compile(example, "example", "exec"), names)
    names["test_every_word_is_counted_once_whatever_dies"]()


@pytest.mark.parametrize("seed", range(6))
def test_windows_count_every_record_once_whatever_the_seed_and_whoever_dies(seed, deaths):
    first, second = said(WORDS), said(reversed(WORDS))
    rows = run(lambda env: word_counts(env, lines(first, second), collect()), seed=seed, crashes=seed % 4)
    assert counted(rows) == expected_counts(first, second)
    assert len(rows) == len(counted(rows))
    assert len(deaths) == seed % 4


@pytest.mark.parametrize("parallelism", [1, 2, 4])
def test_a_crash_mark_kills_once_at_any_parallelism_and_changes_no_result(parallelism, deaths):
    scripts = [
        [*said(WORDS[:8]), crash(), *said(WORDS[8:], first_us=8 * SECOND_US)],
        [crash(), *said(WORDS)],
        [*said(WORDS), crash()],
    ]
    # A subtask that reads several scripts reads them in turn: they are as far apart as their longest batches.
    rows = run(lambda env: word_counts(env, lines(*scripts), collect(), "30s"), parallelism=parallelism, seed=3)
    assert counted(rows) == expected_counts(*scripts)
    assert len(deaths) == 3


def test_a_crash_has_records_read_again_and_committed_once(tmp_path):
    note = tmp_path / "processed"

    def noting(batch):
        with note.open("a") as file:
            file.writelines(f"{n}\n" for n in batch.column("n").to_pylist())
        return batch

    def program(env):
        source = scripted([*({"n": n} for n in range(40)), crash()])
        env.read(source).map_batches(noting, schema="n bigint").write(collected)

    collected = collect()
    rows = run(program, seed=1, checkpoint_interval=None)
    assert sorted(row["n"] for row in rows) == list(range(40))
    assert Counter(map(int, note.read_text().split())) == Counter([*range(40)] * 2)


def test_one_seed_gives_one_run_to_the_order_of_the_rows():
    def once(seed):
        return run(lambda env: word_counts(env, lines(said(WORDS), said(WORDS)), collect()), seed=seed, crashes=1)

    assert once(5) == once(5)
    orders = {tuple(map(str, once(seed))) for seed in range(4)}
    assert len(orders) > 1


def test_records_of_one_script_keep_their_order_through_a_chain():
    numbers = [{"n": n} for n in range(60)]
    rows = run(lambda env: env.read(scripted(numbers)).where("n >= 0").write(collect()), seed=2, crashes=2)
    assert [row["n"] for row in rows] == list(range(60))


def test_every_sink_has_its_own_rows_and_run_returns_all():
    small, large = collect(), collect()

    def program(env):
        stream = env.read(scripted([{"n": n} for n in range(10)]))
        stream.where("n < 4").write(small, name="small")
        stream.where("n >= 4").rebalance().write(large, name="large")

    rows = run(program, crashes=1)
    assert sorted(row["n"] for row in small.rows) == [0, 1, 2, 3]
    assert sorted(row["n"] for row in large.rows) == [4, 5, 6, 7, 8, 9]
    assert rows == [*small.rows, *large.rows]


@pytest.mark.parametrize("seed", range(3))
def test_united_streams_are_counted_together_and_their_windows_wait_for_the_slowest(seed):
    """The first ends long before the second begins to count: its watermark must not close what is still to come."""
    short, long = said(WORDS[:4]), said(WORDS * 3)

    def program(env):
        both = env.read(lines(short)).watermark("at", delay="1s")
        both = both.union(env.read(lines(long), name="long").watermark("at", delay="1s"))
        kept = both.where("word <> 'the'").key_by("word").window(ps.tumbling("5s"))
        kept.aggregate(n=ps.count(), last=ps.max("at")).write(collect())

    rows = run(program, seed=seed, crashes=2)
    assert counted(rows) == expected_counts(short, long)


def test_a_broadcast_shows_every_record_once_per_subtask():
    def program(env):
        env.read(scripted([{"n": n} for n in range(20)])).broadcast().where("n > 4").write(collect())

    rows = run(program, parallelism=3, crashes=1)
    assert Counter(row["n"] for row in rows) == Counter(dict.fromkeys(range(5, 20), 3))


def test_a_sink_holds_the_rows_of_its_last_run_only():
    sink = collect()
    for count in (5, 3):
        run(lambda env, count=count: env.read(scripted([{"n": n} for n in range(count)])).write(sink))
        assert len(sink.rows) == count


def test_a_source_that_stays_silent_ends_nothing_and_the_run_ends_the_job(deaths):
    """What lies behind the watermark, 12 s, is committed; the window that is still open never closes."""
    rows = run(lambda env: word_counts(env, lines(said(WORDS), end=False), collect()), crashes=1)
    closed = Counter({place: n for place, n in expected_counts(said(WORDS)).items() if place[1] < 10})
    assert counted(rows) == closed
    assert len(deaths) == 1


def test_a_silent_script_does_not_hold_windows_back_when_it_is_idle():
    scripts = [said(["early"]), [*said(WORDS), pause(3_000), *said(["end"], first_us=60 * SECOND_US)]]

    def program(env):
        words = env.read(lines(*scripts, end=False)).watermark("at", delay="2s", idle_after="1s")
        words.key_by("word").window(ps.tumbling("5s")).aggregate(n=ps.count()).write(collected)

    collected = collect()
    run(program, linger="3s")
    assert {row["window_start"].second for row in collected.rows} == {0, 5, 10}


def test_other_sources_and_sinks_are_used_for_real(tmp_path):
    bids = ps.nexmark.bids(events=3_000, seed=1, splits=3)

    def program(env):
        env.read(bids).where("price > 1000").write(ps.parquet(str(tmp_path / "out")))

    assert run(program, crashes=2, seed=4) == []
    reader = bids.open(bids.splits(1))
    batches = []
    while isinstance(polled := reader.poll(1_000, 0), pa.RecordBatch):
        batches.append(polled)
    prices = [price for batch in batches for price in batch.column("price").to_pylist() if price > 1_000]
    written = pa.concat_tables([pq.read_table(file) for file in sorted((tmp_path / "out").glob("*.parquet"))])
    assert sorted(written.column("price").to_pylist()) == sorted(prices)


# --- what goes wrong -------------------------------------------------------------------------------------------------


def test_a_function_that_raises_fails_the_run_with_its_own_traceback():
    def broken(row):
        raise KeyError("no such thing")

    def program(env):
        env.read(scripted([{"n": 1}])).map(broken, schema="n bigint").name("my step").write(collect())

    with pytest.raises(ps.JobFailed, match="my step") as caught:
        run(program, crashes=1)
    assert "no such thing" in str(caught.value)
    assert isinstance(caught.value.__cause__, ps.UserCodeError)
    printed = "".join(traceback.format_exception(caught.value))
    assert printed.count('raise KeyError("no such thing")') == 1, printed


class RefusingSink(ps.Sink):
    def __init__(self, when):
        self._when = when

    def writer(self, context) -> SinkWriter:
        if self._when == "writer":
            raise OSError("no room to write")
        return RefusingWriter()

    def commit(self, committables):
        raise OSError("no room to commit")


class RefusingWriter(SinkWriter):
    def write(self, batch):
        pass

    def prepare(self, checkpoint):
        return lambda: [b"token"]


@pytest.mark.parametrize("when", ["writer", "commit"])
def test_a_sink_that_raises_fails_the_run(when):
    with pytest.raises(ps.JobFailed, match=f"no room to {when[:5]}"):
        run(lambda env: env.read(scripted([{"n": 1}])).write(RefusingSink(when)))


class Misused(SinkWriter):
    def write(self, batch):
        raise ps.UsageError("the table has no such column")

    def prepare(self, checkpoint):
        return list


class MisusedSink(ps.Sink):
    def writer(self, context) -> SinkWriter:
        return Misused()

    def commit(self, committables):
        pass


class WithoutWatermark(ps.KeyedFunction):
    def on_row(self, row, context):
        context.timers.at_event_time(7)


def sums_beyond_int64(env):
    rows = [{"word": "to", "at": 0, "n": 2**63 - 1}, {"word": "to", "at": 1, "n": 1}]
    stream = env.read(scripted(rows, schema="word string, at timestamp, n bigint")).watermark("at", delay="1s")
    windows = stream.key_by("word").window(ps.tumbling("5s"))
    windows.aggregate(n=ps.sum("n")).name("sums").write(collect())


PERMANENT = {
    "a sink that raises UsageError": (
        lambda env: env.read(scripted([{"n": 1}])).write(MisusedSink(), name="misused"),
        "misused",
        "the table has no such column",
    ),
    "a sum that overflows": (sums_beyond_int64, "sums", "sum"),
    "a timer without a watermark": (
        lambda env: (
            env.read(scripted([{"n": 1}])).key_by("n").process(WithoutWatermark(), schema="n long", name="timers")
        ).write(collect()),
        "timers",
        "watermark",
    ),
}


@pytest.mark.parametrize("crashes", [0, 2])
@pytest.mark.parametrize(("program", "step", "text"), PERMANENT.values(), ids=PERMANENT)
def test_a_run_that_ends_with_an_error_that_no_restart_can_mend_tells_it_and_its_step(program, step, text, crashes):
    with pytest.raises(ps.JobFailed, match=f"the job failed in '{step}', subtask \\d: .*{text}") as caught:
        run(program, crashes=crashes)
    assert "every source must end" not in str(caught.value)


class EndlessSource(ps.Source):
    @property
    def schema(self):
        return pa.schema([pa.field("n", pa.int64())])

    def splits(self, parallelism):
        return [b"only"]

    def open(self, splits):
        return EndlessReader()


class EndlessReader(ps.SourceReader):
    def poll(self, max_rows, now_ms):
        return Pause(1_000)

    def snapshot(self):
        return [b"only"]


def test_a_source_that_never_ends_fails_the_run_and_says_what_to_do():
    with pytest.raises(ps.JobFailed, match="end=False"):
        run(lambda env: env.read(EndlessSource()).write(collect()), checkpoint_interval="1 min")


def test_a_program_that_leads_nowhere_is_refused():
    with pytest.raises(ps.UsageError, match="nothing is done"):
        run(lambda env: env.read(scripted([{"n": 1}])))


def test_what_a_run_cannot_do_is_refused():
    with pytest.raises(ps.UsageError, match="negative"):
        run(lambda env: None, crashes=-1)
    with pytest.raises(ps.UsageError, match="no unit"):
        run(lambda env: None, checkpoint_interval=5)


def test_rows_cannot_be_read_before_a_run_and_are_those_that_were_committed_after_one_that_failed():
    sink = collect()
    with pytest.raises(ps.UsageError, match="nothing has been run"):
        _ = sink.rows
    run(lambda env: env.read(scripted([{"n": 1}])).write(sink))
    assert sink.rows == [{"n": 1}]

    def program(env):
        env.read(scripted([{"n": 1}])).map(lambda row: 1 / 0, schema="n bigint").write(sink)

    with pytest.raises(ps.JobFailed):
        run(program)
    assert sink.rows == []


# --- scripts ---------------------------------------------------------------------------------------------------------


def read_all(source, *, splits=None, max_rows=3, until_ms=10_000):
    """(time, records) of every batch, and the times of the pauses."""
    reader = source.open(source.splits(1) if splits is None else splits)
    batches, pauses, now_ms = [], [], 0
    while now_ms <= until_ms and not isinstance(polled := reader.poll(max_rows, now_ms), End):
        if isinstance(polled, Pause):
            pauses.append((now_ms, polled.wait_ms))
            now_ms += polled.wait_ms
        else:
            assert polled.schema.equals(source.schema)
            batches.append((now_ms, [row["n"] for row in polled.to_pylist()]))
    return batches, pauses


def test_a_script_is_read_in_its_order_in_pieces_of_the_wanted_size():
    batch = pa.record_batch([pa.array([5, 6, 7, 8], pa.int64())], names=["n"])
    source = scripted([{"n": 1}, {"n": 2}, batch, {"n": 9}])
    assert read_all(source) == ([(0, [1, 2]), (0, [5, 6, 7]), (0, [8]), (0, [9])], [])


def test_a_pause_lasts_as_long_as_it_says():
    source = scripted([{"n": 1}, pause(30), {"n": 2}, pause(5), pause(5), {"n": 3}])
    assert read_all(source) == ([(0, [1]), (30, [2]), (40, [3])], [(0, 30), (30, 5), (35, 5)])


def test_scripts_are_read_in_turn_and_one_that_pauses_does_not_hold_the_others_up():
    source = scripted([{"n": n} for n in range(4)], [pause(9), {"n": 10}], [{"n": 20}])
    batches, _ = read_all(source, max_rows=2)
    assert batches == [(0, [0, 1]), (0, [20]), (0, [2, 3]), (9, [10])]


def test_a_reader_goes_on_where_a_snapshot_was_taken():
    source = scripted([{"n": n} for n in range(5)], [{"n": 10}, pause(3), {"n": 11}])
    reader = source.open(source.splits(2))
    seen = [reader.poll(2, 0).column("n").to_pylist() for _ in range(3)]
    rest, _ = read_all(source, splits=reader.snapshot())
    assert sorted(n for part in (*seen, *(values for _, values in rest)) for n in part) == [0, 1, 2, 3, 4, 10, 11]


def test_a_script_that_was_read_leaves_nothing_to_snapshot_and_a_silent_one_its_place():
    for end, left in ((True, 0), (False, 1)):
        source = scripted([{"n": 1}], end=end)
        reader = source.open(source.splits(1))
        reader.poll(10, 0)
        assert len(reader.snapshot()) == left
        assert isinstance(reader.poll(10, 0), End if end else Pause)


def test_columns_are_told_by_the_schema_the_first_batch_or_the_dicts():
    at = datetime(2024, 1, 1, tzinfo=UTC)
    assert scripted([], schema="n int").schema == pa.schema([pa.field("n", pa.int32())])
    batch = pa.record_batch([pa.array([1], pa.int16())], names=["n"])
    assert scripted([{"n": 1}], [batch]).schema == batch.schema
    inferred = scripted([{"n": 1}, {"word": "to", "at": at}]).schema
    assert inferred == pa.schema({"n": pa.int64(), "word": pa.string(), "at": pa.timestamp("us", tz="UTC")})


def test_a_column_that_a_record_leaves_out_is_null():
    source = scripted([{"n": 1}, {"word": "to"}])
    assert source.open(source.splits(1)).poll(9, 0).to_pylist() == [{"n": 1, "word": None}, {"n": None, "word": "to"}]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (scripted, "at least one script"),
        (lambda: scripted({"n": 1}), "a script is a list"),
        (lambda: scripted(crash()), "a script is a list"),
        (lambda: scripted("to be"), "a script is a list"),
        (lambda: scripted([1, 2]), "cannot have 1 in it"),
        (lambda: scripted([crash()]), "need a schema"),
        (lambda: scripted([{"n": 1}, {"n": "one"}]), "cannot be inferred"),
        (lambda: scripted([{"m": 1}], schema="n int"), "no column 'm'"),
        (lambda: scripted([{"n": "one"}], schema="n int"), "does not fit"),
        (lambda: scripted([{"n": 2**40}], schema="n int"), "does not fit"),
        (lambda: scripted([pa.record_batch([[1]], names=["m"])], schema="n bigint"), "does not have the schema"),
        (lambda: pause(0), "whole milliseconds"),
        (lambda: pause(1.5), "whole milliseconds"),
    ],
)
def test_a_script_that_makes_no_sense_is_refused_when_it_is_made(make, text):
    with pytest.raises(ps.UsageError, match=text):
        make()


def test_a_crash_mark_is_refused_where_nothing_can_crash():
    source = scripted([{"n": 1}, crash()])
    reader = source.open(source.splits(1))
    reader.poll(10, 0)
    with pytest.raises(ps.UsageError, match=r"penstock\.testing\.run only"):
        reader.poll(10, 0)


class Leaving(ps.AggregateFunction):
    """`merge` raises: it is called in a snapshot, off the loop, when two partials of a key have met."""

    state_type = "bigint"
    result_type = "bigint"

    def create(self):
        return 0

    def add(self, state, row):
        return state + 1

    def merge(self, a, b):
        raise SystemExit(3)

    def result(self, state):
        return state


class LeavingWriter(SinkWriter):
    def write(self, batch):
        pass

    def prepare(self, checkpoint):
        def work():
            raise SystemExit(3)

        return work


class LeavingSink(ps.Sink):
    @property
    def name(self):
        return "leaving"

    def writer(self, context):
        return LeavingWriter()


async def leave_later(row):
    raise SystemExit(3)


async def leave_in_a_task(row):
    await asyncio.gather(asyncio.ensure_future(leave_later(row)))


async def leave_in_a_thread(row):
    await asyncio.to_thread(sys.exit, 3)


@pytest.mark.parametrize(
    ("build", "step"),
    [
        (lambda words: words.async_map(leave_later, schema="n int", name="ask").write(collect()), "ask"),
        (lambda words: words.async_map(leave_in_a_task, schema="n int", name="ask").write(collect()), "ask"),
        (lambda words: words.lookup(leave_later, on="word", schema="m int", name="ask").write(collect()), "ask"),
        (lambda words: words.async_map(leave_in_a_thread, schema="n int", name="ask").write(collect()), "ask"),
        (lambda words: words.window(ps.tumbling("1h")).aggregate(n=Leaving("word")).write(collect()), "window"),
        (lambda words: words.write(LeavingSink()), "leaving"),
    ],
    ids=[
        "an async function",
        "a task of an async function",
        "a lookup",
        "a thread of an async function",
        "the merge of an aggregate",
        "the work of a writer",
    ],
)
def test_sys_exit_beside_the_loop_names_its_step(build, step):
    script = [part for word in said(WORDS) for part in (word, pause(200))]
    with pytest.raises(ps.JobFailed, match=rf"in '[^']*{step}', subtask \d: .*SystemExit: 3"):
        run(lambda env: build(env.read(lines(script)).watermark("at", delay="1h")))
