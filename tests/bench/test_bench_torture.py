"""Records that count themselves, the kills, and the judgement: every kind of damage is seen as what it is."""

from __future__ import annotations

import itertools
import random
import sys
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from job_views import make_view

from penstock.api.connector import End
from penstock.bench.random_kills import MOST_WAIT_MS, RandomKills
from penstock.bench.sequences import (
    SCHEMA,
    TICK_US,
    Damage,
    Sequences,
    Windows,
    check_sequences,
    check_windows,
    expected_numbers,
    tell_to_end,
)
from penstock.bench.torture import (
    DEFAULT_KILLS,
    KILLS_PER_ROUND,
    STALL_MS,
    RoundResult,
    Stall,
    TortureOptions,
    report,
    rounds,
    summary,
)
from penstock.bench.torture_job import KEYS, WINDOW_NUMBERS, Places, committed_files, judge, torture_plan
from penstock.cli import main
from penstock.core.errors import InvariantError, JobFailed
from penstock.core.job.events import JobState
from penstock.plan.graph import Partitioning

# --- the source ------------------------------------------------------------------------------------------------------


@pytest.fixture
def source(tmp_path) -> Sequences:
    return Sequences(keys=3, control=str(tmp_path))


def rows_of(reader, polls=1, rows=4):
    found = []
    for _ in range(polls):
        polled = reader.poll(rows, 0)
        if polled == End():
            break
        assert polled.schema == SCHEMA
        found += zip(polled.column("key").to_pylist(), polled.column("seq").to_pylist(), strict=True)
    return found


def test_each_key_of_a_split_counts_from_zero(source):
    reader = source.open(source.splits(2)[1:])
    assert rows_of(reader, polls=2) == [(3, 0), (4, 0), (5, 0), (3, 1), (4, 1), (5, 1), (3, 2), (4, 2)]


def test_event_time_grows_with_the_number(source):
    polled = source.open(source.splits(1)).poll(7, 0)
    assert polled.column("ts").cast(pa.int64()).to_pylist() == [0, 0, 0, TICK_US, TICK_US, TICK_US, 2 * TICK_US]


def test_a_source_that_is_told_to_end_ends_where_it_is_and_says_where(source, tmp_path):
    reader = source.open(source.splits(1))
    rows_of(reader, polls=2)
    tell_to_end(tmp_path)
    tell_to_end(tmp_path)
    assert reader.poll(4, 0) == End()
    assert reader.snapshot() == []
    assert expected_numbers(tmp_path, splits=1, keys=3).tolist() == [3, 3, 2]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["end", "end-0"]


def test_a_split_that_is_read_again_ends_where_it_ended_before(source, tmp_path):
    reader = source.open(source.splits(1))
    snapshot = reader.snapshot()
    before = rows_of(reader, polls=2)
    tell_to_end(tmp_path)
    assert reader.poll(4, 0) == End()
    again = source.open(snapshot)
    assert rows_of(again, polls=9, rows=3) == before
    assert again.poll(3, 0) == End()


def test_a_split_that_went_beyond_its_end_is_a_bug(source, tmp_path):
    behind, ahead = source.open(source.splits(1)), source.open(source.splits(1))
    rows_of(ahead)
    tell_to_end(tmp_path)
    behind.poll(4, 0)
    with pytest.raises(InvariantError, match="split 0 was read to row 4, but ends at row 0"):
        ahead.poll(4, 0)


def test_all_splits_have_their_own_end(source, tmp_path):
    readers = [source.open([split]) for split in source.splits(2)]
    rows_of(readers[1])
    tell_to_end(tmp_path)
    for reader in readers:
        assert reader.poll(4, 0) == End()
    assert expected_numbers(tmp_path, splits=2, keys=3).tolist() == [0, 0, 0, 2, 1, 1]


# --- the check of rows -----------------------------------------------------------------------------------------------


def check(rows, expected=None):
    keys = np.array([key for key, _ in rows], dtype=np.int64)
    numbers = np.array([number for _, number in rows], dtype=np.int64)
    return check_sequences(keys, numbers, expected=None if expected is None else np.array(expected, dtype=np.int64))


GOOD = [(0, 0), (1, 0), (0, 1), (2, 0), (1, 1), (0, 2), (2, 1)]
EXPECTED = [3, 2, 2]


@pytest.mark.parametrize("expected", [None, EXPECTED])
def test_complete_sequences_are_not_damaged(expected):
    assert check(GOOD, expected) == Damage()


@pytest.mark.parametrize("expected", [None, EXPECTED])
@pytest.mark.parametrize(
    ("rows", "damage"),
    [
        ([row for row in GOOD if row != (0, 1)], Damage(lost=1)),
        ([row for row in GOOD if row[1] > 0], Damage(lost=3)),
        ([*GOOD, (0, 1)], Damage(duplicated=1)),
        ([*GOOD, (0, 2), (0, 2), (1, 0)], Damage(duplicated=3)),
        ([(0, 0), (1, 0), (0, 2), (2, 0), (1, 1), (0, 1), (2, 1)], Damage(out_of_order=1)),
        ([(0, 2), (0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)], Damage(out_of_order=2)),
        ([(0, 2), (0, 0), (0, 0), (1, 1), (2, 0), (2, 1)], Damage(lost=2, duplicated=1, out_of_order=1)),
    ],
)
def test_each_kind_of_damage_counts_as_what_it_is(rows, damage, expected):
    assert check(rows, expected) == damage


def test_what_is_missing_at_the_end_shows_only_if_the_end_is_known():
    cut = [row for row in GOOD if row not in [(0, 2), (2, 0), (2, 1)]]
    assert check(cut) == Damage()
    assert check(cut, EXPECTED) == Damage(lost=3)
    assert check([], EXPECTED) == Damage(lost=7)
    assert check([]) == Damage()


def test_what_nobody_sent_is_too_much():
    assert check([*GOOD, (0, 3), (7, 0)], EXPECTED) == Damage(duplicated=2)


def naive(rows, expected):
    """The same as `check_sequences`, by counting on fingers."""
    lost = duplicated = out_of_order = 0
    for key, count in enumerate(expected):
        seen = []
        for number in (n for k, n in rows if k == key):
            duplicated += number in seen or number >= count
            out_of_order += number not in seen and any(number < other for other in seen)
            seen.append(number)
        lost += len(set(range(count)) - set(seen))
    return Damage(lost=lost, duplicated=duplicated, out_of_order=out_of_order)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6)), max_size=40),
    st.lists(st.integers(0, 7), min_size=4, max_size=4),
)
def test_the_check_agrees_with_counting_on_fingers(rows, expected):
    assert check(rows, expected) == naive(rows, expected)


# --- the check of windows --------------------------------------------------------------------------------------------


def windows_of(rows):
    """Rows of (key, window, numbers in it)."""
    columns = [[key, window, len(numbers), sum(numbers)] for key, window, numbers in rows]
    keys, windows, counts, sums = np.array(columns, dtype=np.int64).reshape(-1, 4).T
    return Windows(keys=keys, windows=windows, counts=counts, sums=sums)


FULL = [(0, 0, [0, 1, 2]), (1, 0, [0, 1, 2]), (0, 1, [3, 4, 5])]
LAST = [(1, 1, [3]), (0, 2, [6, 7])]
NUMBERS = np.array([8, 4], dtype=np.int64)


def test_windows_that_are_complete_are_not_damaged():
    assert check_windows(windows_of(FULL + LAST), size=3, expected=NUMBERS) == Damage()
    assert check_windows(windows_of(FULL), size=3, expected=None) == Damage()
    assert check_windows(windows_of([]), size=3, expected=None) == Damage()


@pytest.mark.parametrize(
    ("rows", "damage"),
    [
        (FULL[1:] + LAST, Damage(lost=3)),
        (FULL + LAST[1:], Damage(lost=1)),
        ([*FULL, *LAST, FULL[0]], Damage(duplicated=3)),
        ([(0, 0, [0, 1]), *FULL[1:], *LAST], Damage(lost=1)),
        ([(0, 0, [0, 1, 2, 2]), *FULL[1:], *LAST], Damage(duplicated=1)),
        ([(0, 0, [0, 2, 2]), *FULL[1:], *LAST], Damage(lost=1, duplicated=1)),
        ([*FULL, *LAST, (0, 3, [9])], Damage(duplicated=1)),
        ([*FULL, *LAST, (5, 0, [0])], Damage(duplicated=1)),
    ],
)
def test_windows_that_counted_something_else_are_damaged(rows, damage):
    assert check_windows(windows_of(rows), size=3, expected=NUMBERS) == damage


def test_without_a_known_end_every_window_must_be_complete():
    assert check_windows(windows_of(FULL + LAST), size=3, expected=None) == Damage(lost=3)


# --- what was committed ----------------------------------------------------------------------------------------------


def commit(folder, name, columns):
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.table(columns), folder / name)


@pytest.fixture
def places(tmp_path) -> Places:
    """The output of a job of one slot that has read two windows of each key, and ended."""
    places = Places(tmp_path)
    places.control.mkdir()
    reader = Sequences(keys=KEYS, control=str(places.control)).open(Sequences(keys=KEYS, control="").splits(1))
    polled = reader.poll(2 * WINDOW_NUMBERS * KEYS, 0)
    tell_to_end(places.control)
    assert reader.poll(1, 0) == End()
    rows = pa.Table.from_batches([polled]).select(["key", "seq"])
    # Numbers as text would put 10 before 9.
    for checkpoint, part in ((9, rows.slice(0, 300)), (10, rows.slice(300, 700))):
        commit(places.rows, f"part-torture-aligned-1f-0-{checkpoint}-0.parquet", part)
    commit(places.rows, "part-torture-aligned-1f-0-10-1.parquet", rows.slice(1_000))
    size_us = WINDOW_NUMBERS * TICK_US
    for window in range(2):
        first = window * WINDOW_NUMBERS
        columns = {
            "key": list(range(KEYS)),
            "window_start": pa.array([window * size_us] * KEYS, pa.timestamp("us", "UTC")),
            "n": [WINDOW_NUMBERS] * KEYS,
            "total": [sum(range(first, first + WINDOW_NUMBERS))] * KEYS,
        }
        commit(places.windows, f"part-torture-aligned-1f-0-{window + 9}-0.parquet", columns)
    return places


def test_files_are_read_in_the_order_of_their_checkpoints(places):
    (places.rows / "something-else.parquet").touch()
    assert [file.stem.removeprefix("part-torture-aligned-1f-") for file in committed_files(places.rows)] == [
        "0-9-0",
        "0-10-0",
        "0-10-1",
    ]


@pytest.mark.parametrize("is_finished", [True, False])
def test_an_output_that_is_right_is_judged_right(places, is_finished):
    assert judge(places, parallelism=1, is_finished=is_finished) == Damage()


def test_a_job_that_was_interrupted_is_judged_by_what_it_committed(places):
    committed_files(places.rows)[-1].unlink()
    committed_files(places.windows)[-1].unlink()
    assert judge(places, parallelism=1, is_finished=False) == Damage()
    assert judge(places, parallelism=1, is_finished=True) == Damage(lost=2 * WINDOW_NUMBERS * KEYS)


def test_a_file_that_is_missing_or_there_twice_or_in_the_wrong_place_is_seen(places):
    first = committed_files(places.rows)[0]
    content = first.read_bytes()
    first.unlink()
    assert judge(places, parallelism=1, is_finished=False) == Damage(lost=300)
    first.with_name(first.name.replace("-9-", "-11-")).write_bytes(content)
    assert judge(places, parallelism=1, is_finished=False) == Damage(out_of_order=300)
    first.write_bytes(content)
    assert judge(places, parallelism=1, is_finished=False) == Damage(duplicated=300)


def test_a_job_that_committed_nothing_is_not_damaged(tmp_path):
    assert judge(Places(tmp_path), parallelism=1, is_finished=False) == Damage()


def test_the_job_has_an_exchange_by_key_before_the_rows_and_before_the_windows(tmp_path):
    plan = torture_plan(Places(tmp_path), parallelism=3)
    by_key = {e.downstream for e in plan.edges if e.partitioning is Partitioning.HASH}
    assert by_key == {"uneven", "window"}


# --- the kills -------------------------------------------------------------------------------------------------------


class Draws(random.Random):
    """Draws that the test has chosen: the wait is always `wait_ms`, the first slot is hit."""

    def __init__(self, *, wait_ms: int, hasty: bool) -> None:
        super().__init__(0)
        self._wait_ms = wait_ms
        self._hasty = hasty

    def randrange(self, stop):
        assert stop == MOST_WAIT_MS
        return self._wait_ms

    def choice(self, among):
        return among[0]

    def random(self):
        return 0.0 if self._hasty else 1.0


class Victims:
    def __init__(self) -> None:
        self.pids: list[int] = []
        self.gone: tuple[int, ...] = ()

    def kill(self, pid: int) -> bool:
        if pid in self.gone:
            return False
        self.pids.append(pid)
        return True


@pytest.fixture
def victims() -> Victims:
    return Victims()


def test_a_kill_comes_some_time_after_the_first_checkpoint(victims):
    kills = RandomKills(Draws(wait_ms=700, hasty=False), count=1, kill=victims.kill)
    assert kills.look(make_view(completed=0), 1_000) == []
    assert kills.look(make_view(completed=1), 1_100) == []
    assert kills.look(make_view(completed=4), 1_799) == []
    assert kills.look(make_view(completed=5), 1_800) == [
        "kill 1 of 1: pid 4710 of slot 0 (SIGKILL), attempt 1 running, 5 completed"
    ]
    assert victims.pids == [4_710]


def test_a_patient_kill_waits_for_a_checkpoint_of_the_next_attempt(victims):
    kills = RandomKills(Draws(wait_ms=0, hasty=False), count=2, kill=victims.kill)
    kills.look(make_view(completed=1), 1_000)
    for view in (
        make_view(completed=2),
        make_view(completed=2, state=JobState.FAILING),
        make_view(completed=2, epoch=2, state=JobState.DEPLOYING),
    ):
        assert kills.look(view, 2_000) == []
    assert kills.look(make_view(completed=2, epoch=2, restored=2), 3_500) == [
        "running again after 2.5 s, restored from checkpoint 2"
    ]
    assert kills.look(make_view(completed=2, epoch=2, restored=2), 9_000) == []
    assert len(kills.look(make_view(completed=3, epoch=2, restored=2, slots=3), 9_500)) == 1
    assert victims.pids == [4_710, 4_711]
    assert kills.recoveries_ms == [2_500]


def test_a_hasty_kill_waits_for_nothing_and_is_followed_by_a_patient_one(victims):
    kills = RandomKills(Draws(wait_ms=0, hasty=True), count=3, kill=victims.kill)
    kills.look(make_view(completed=1), 1_000)
    assert kills.look(make_view(completed=1, state=JobState.FAILING), 1_020) == [
        "kill 2 of 3: pid 4711 of slot 1 (SIGKILL), attempt 1 failing, 1 completed"
    ]
    assert kills.look(make_view(completed=1, state=JobState.FAILING, slots=3), 9_000) == []
    assert kills.look(make_view(completed=1, epoch=2), 3_000) == ["running again after 2.0 s, from the beginning"]
    assert kills.recoveries_ms == [2_000]


def test_nobody_is_killed_twice(victims):
    kills = RandomKills(Draws(wait_ms=0, hasty=True), count=2, kill=victims.kill)
    kills.look(make_view(completed=1, slots=1), 1_000)
    assert kills.look(make_view(completed=1, slots=1), 1_020) == []
    kills.look(make_view(completed=1, slots=2), 1_040)
    assert victims.pids == [4_710, 4_711]


def test_a_process_that_is_gone_already_does_not_count(victims):
    kills = RandomKills(Draws(wait_ms=0, hasty=False), count=1, kill=victims.kill)
    victims.gone = (4_710,)
    assert kills.look(make_view(completed=1), 1_000) == []
    victims.gone = ()
    kills.look(make_view(completed=1), 1_020)
    assert (kills.done, victims.pids) == (1, [4_710])


def test_a_slot_that_has_not_called_in_cannot_be_hit(victims):
    kills = RandomKills(Draws(wait_ms=0, hasty=False), count=1, kill=victims.kill)
    view = make_view(completed=1)
    starting = replace(view, slots=(replace(view.slots[0], pid=None), view.slots[1]))
    kills.look(starting, 1_000)
    assert victims.pids == [4_711]


def test_kills_are_over_when_the_job_has_completed_a_checkpoint_after_the_last(victims):
    kills = RandomKills(Draws(wait_ms=0, hasty=False), count=1, kill=victims.kill)
    kills.look(make_view(completed=1), 1_000)
    over = []
    for view in (make_view(completed=1), make_view(completed=1, epoch=2), make_view(completed=2, epoch=2)):
        kills.look(view, 2_000)
        over.append(kills.is_over)
    assert over == [False, False, True]


def test_the_same_seed_draws_the_same_kills():
    def story(seed):
        victims = Victims()
        kills = RandomKills(random.Random(seed), count=3, kill=victims.kill)
        views = [make_view(completed=n, epoch=n, slots=9) for n in range(1, 9)]
        return [kills.look(view, 1_000 * n) for n, view in enumerate(views)]

    assert story(1) == story(1)
    assert len({str(story(seed)) for seed in range(9)}) > 1


# --- rounds ----------------------------------------------------------------------------------------------------------


def options(*, kills=None, minutes=None, mode="all", seed=1):
    return TortureOptions(
        kills=kills, minutes=minutes, mode=mode, seed=seed, target="files", directory=None, as_json=False
    )


def test_kills_are_spread_over_the_modes():
    found = list(rounds(options()))
    assert [(r.mode, r.kills) for r in found] == [("aligned", 4), ("unaligned", 4), ("timeout", 2)]
    assert sum(r.kills for r in found) == DEFAULT_KILLS


def test_many_kills_take_many_rounds():
    found = list(rounds(options(kills=22)))
    assert [r.mode for r in found] == ["aligned", "unaligned", "timeout", "aligned", "unaligned"]
    assert [r.kills for r in found] == [5, 5, 5, 5, 2]


def test_one_mode_has_all_rounds():
    assert [(r.mode, r.kills) for r in rounds(options(kills=7, mode="timeout"))] == [("timeout", 5), ("timeout", 2)]


def test_if_only_the_time_is_limited_there_is_always_another_round():
    found = list(itertools.islice(rounds(options(minutes=0.5)), 1_000))
    assert len(found) == 1_000
    assert {r.kills for r in found} == {KILLS_PER_ROUND}


def test_rounds_differ_and_the_seed_decides_how():
    seeds = [r.seed for r in rounds(options(kills=30))]
    assert len(set(seeds)) == len(seeds)
    assert seeds == [r.seed for r in rounds(options(kills=30))]
    assert seeds != [r.seed for r in rounds(options(kills=30, seed=2))]


def test_a_job_without_a_new_checkpoint_for_too_long_is_stuck():
    stall = Stall(1_000)
    stall.look(0, 1_000 + STALL_MS - 1)
    stall.look(1, 1_000 + STALL_MS)
    stall.look(1, 1_000 + 2 * STALL_MS - 1)
    with pytest.raises(JobFailed, match="stuck: 1 checkpoints are complete"):
        stall.look(1, 1_000 + 2 * STALL_MS)


# --- the command -----------------------------------------------------------------------------------------------------


def result(**damage):
    return RoundResult(
        kills=3,
        checkpoints_completed=20,
        recoveries_ms=(900, 1_500),
        most_persisted_bytes=4_321,
        damage=Damage(**damage),
    )


def test_the_result_is_that_of_all_rounds():
    results = [result(lost=1), result(duplicated=2, lost=1), result(out_of_order=5)]
    assert summary(results) == {
        "kills": 9,
        "checkpoints_completed": 60,
        "lost": 2,
        "duplicated": 2,
        "out_of_order": 5,
    }
    assert report(results) == [
        "9 workers killed, longest recovery 1.5 s, 60 checkpoints completed",
        "lost 2, duplicated 2, out of order 5",
    ]


@pytest.fixture
def no_spark(monkeypatch) -> None:
    @contextmanager
    def nothing(options):
        yield None

    monkeypatch.setattr("penstock.terminal.session.spark_session", nothing)


@pytest.fixture
def run_with(monkeypatch, no_spark):
    """Run the command with rounds that end as told: a result, or what is raised."""

    def run(*ends):
        left = list(ends)

        def run_round(spark, planned, place, *, say, deadline_ms, broker):
            end = left.pop(0)
            if isinstance(end, BaseException):
                raise end
            return end

        monkeypatch.setattr(sys.modules["penstock.bench.torture"], "run_round", run_round)
        return CliRunner().invoke(main, ["torture", "--json"])

    return run


CLEAN = '{"kills": 9, "checkpoints_completed": 60, "lost": 0, "duplicated": 0, "out_of_order": 0}\n'


def test_without_damage_the_command_succeeds(run_with):
    ran = run_with(result(), result(), result())
    assert (ran.exit_code, ran.stdout) == (0, CLEAN)


@pytest.mark.parametrize("kind", ["lost", "duplicated", "out_of_order"])
def test_damage_fails_the_command(run_with, kind):
    ran = run_with(result(), result(**{kind: 1}), result())
    assert ran.exit_code == 1
    assert ran.stdout == CLEAN.replace(f'"{kind}": 0', f'"{kind}": 1')


def test_an_interrupt_ends_the_rounds_and_the_verdict_is_printed_all_the_same(run_with):
    ran = run_with(result(), replace(result(), interrupt=KeyboardInterrupt()))
    assert ran.exit_code == 130
    assert ran.stdout == CLEAN.replace("9", "6", 1).replace("60", "40")
    assert ran.stderr.endswith("penstock: interrupted\n")


def test_an_interrupt_between_two_rounds_does_not_lose_the_verdict(run_with):
    ran = run_with(result(), KeyboardInterrupt())
    assert ran.exit_code == 130
    assert ran.stdout == CLEAN.replace("9", "3", 1).replace("60", "20")


def test_damage_outweighs_an_interrupt(run_with):
    assert run_with(replace(result(lost=1), interrupt=KeyboardInterrupt())).exit_code == 1


def test_a_round_that_is_left_of_an_earlier_run_is_not_overwritten(tmp_path, no_spark):
    (tmp_path / "round-1").mkdir()
    ran = CliRunner().invoke(main, ["torture", "--directory", str(tmp_path)])
    assert ran.exit_code == 2
    assert "is left of an earlier run" in ran.stderr
