"""Streams that are printed: on the driver, as they come, bounded, and at least once."""

from __future__ import annotations

import doctest
import logging

import pyarrow as pa
import pytest

import penstock as ps
from penstock.api import foreach
from penstock.api.connector import WriterContext
from penstock.api.printing import MOST_OF_A_BATCH, PrintSink
from penstock.core.ids import SlotId
from penstock.core.messages import WorkerLog
from penstock.runtime.worker_logs import MOST_PRINTED, WorkerLogs, collected, tell
from penstock.testing import run, scripted

SLOT = SlotId(0, 1)
CONTEXT = WriterContext(job="job", subtask=0, parallelism=1, epoch=1)


def writer(*, counted=False, prefix=None):
    return PrintSink(counted=counted, prefix=prefix).writer(CONTEXT)


def batch(count, first=0):
    return pa.record_batch({"n": pa.array(range(first, first + count), pa.int64())})


def test_a_record_is_a_line_with_the_names_of_its_columns(capsys):
    writer(prefix="bids").write(pa.record_batch({"word": ["to", None], "n": [1, 2]}))
    assert capsys.readouterr().out == "bids> {word: to, n: 1}\nbids> {word: NULL, n: 2}\n"


@pytest.mark.parametrize("parallelism", [1, 3])
def test_only_the_first_records_of_all_subtasks_together_are_printed(capsys, parallelism):
    def program(env):
        numbers = env.read(scripted(*[[{"n": n} for n in range(20)] for _ in range(4)], schema="n bigint"))
        numbers.print(7)
        numbers.write(ps.collect())

    rows = run(program, parallelism=parallelism)
    assert len(rows) == 80
    assert len(capsys.readouterr().out.splitlines()) == 7


@pytest.mark.parametrize("seed", range(5))
def test_a_count_of_printed_records_goes_on_after_a_failure(capsys, seed):
    """Records behind the newest checkpoint are printed again, and so there may be more lines, but no other records."""

    def program(env):
        numbers = env.read(scripted([{"n": n} for n in range(20)], schema="n bigint"))
        numbers.print(7)
        numbers.write(ps.collect())

    assert len(run(program, seed=seed, crashes=2)) == 20
    assert set(capsys.readouterr().out.splitlines()) == {f"{{n: {n}}}" for n in range(7)}


def test_the_first_changes_of_a_changelog_are_printed_with_their_kinds(capsys):
    def program(env):
        words = env.from_iterable([{"word": word} for word in ("to", "be", "to")])
        words.key_by("word").aggregate(n=ps.count()).print(1)

    run(program, parallelism=1)
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_no_line_of_a_few_records_is_left_out(capsys):
    """They come faster than a slot sends lines of other records."""
    logs = WorkerLogs("INFO")
    with collected(logs):
        writer(counted=True).write(batch(5_000))
    while (taken := logs.take(SLOT)) is not None:
        tell(taken)
    lines = capsys.readouterr().out.splitlines()
    assert (len(lines), lines[-1]) == (5_000, "{n: 4999}")


def test_of_a_large_batch_some_records_are_printed_and_the_others_are_counted(capsys):
    writer().write(batch(100_000))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == MOST_OF_A_BATCH + 1
    assert lines[-1] == "(99,900 more rows are not printed: they came too fast)"


def test_a_printed_record_is_no_part_of_a_transaction():
    made = writer()
    made.write(batch(1))
    assert made.prepare(1)() == []


def test_what_a_slot_prints_is_printed_by_the_driver_and_not_by_the_slot(capsys):
    logs = WorkerLogs("CRITICAL")
    with collected(logs):
        writer().write(batch(2))
    assert capsys.readouterr().out == ""
    taken = logs.take(SLOT)
    assert taken == WorkerLog(slot=SLOT, lines=(), printed=("{n: 0}", "{n: 1}"))
    assert logs.take(SLOT) is None
    tell(taken)
    assert capsys.readouterr().out == "{n: 0}\n{n: 1}\n"


def test_a_slot_keeps_a_bounded_number_of_lines_and_counts_the_others(capsys):
    logs = WorkerLogs("INFO")
    with collected(logs):
        made = writer()
        for _ in range(5):
            made.write(batch(150))
        logging.getLogger("mine").warning("heard all the same")
    taken = logs.take(SLOT)
    assert (len(taken.printed), taken.unprinted, len(taken.lines)) == (MOST_PRINTED, 5 * 150 - MOST_PRINTED, 1)
    tell(taken)
    assert "(550 more rows are not printed: they came too fast)" in capsys.readouterr().out
    with collected(logs):
        made.write(batch(1))
    assert logs.take(SLOT).printed == ("{n: 0}",)


@pytest.mark.parametrize("seed", range(20))
def test_every_record_is_printed_at_least_once_whatever_dies(capsys, seed):
    numbers = scripted([{"n": n} for n in range(20)], schema="n bigint")

    def program(env):
        stream = env.read(numbers)
        stream.print()
        stream.write(ps.collect())

    rows = run(program, seed=seed, crashes=2)
    assert sorted(row["n"] for row in rows) == list(range(20))
    assert set(capsys.readouterr().out.split("\n")) == {"", *(f"{{n: {n}}}" for n in range(20))}


def test_several_streams_may_be_printed(capsys):
    def program(env):
        stream = env.read(scripted([{"n": 1}], schema="n bigint"))
        stream.print(prefix="a")
        stream.print(prefix="b")

    run(program)
    assert sorted(capsys.readouterr().out.split("\n")) == ["", "a> {n: 1}", "b> {n: 1}"]


def test_wrong_arguments_are_told():
    for arguments in ({"n": 0}, {"n": True}, {"n": 10_001}, {"prefix": 3}, {"prefix": "a\nb"}):
        with pytest.raises(ps.UsageError, match=next(iter(arguments))):
            run(lambda env, given=arguments: env.read(scripted([{"n": 1}])).print(**given))


def test_the_example_is_true():
    assert doctest.testmod(foreach).failed == 0
