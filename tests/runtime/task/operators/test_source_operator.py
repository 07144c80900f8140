from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pytest

from penstock.api.connector import End, Pause, Source, SourceReader
from penstock.api.steps import ReadStep
from penstock.core.elements import MAX_WATERMARK
from penstock.core.errors import UsageError

SCHEMA = pa.schema([("text", pa.string())])


class Letters(SourceReader):
    """Each split is what is left to read of a text: a letter is a record, a dot a pause."""

    def __init__(self, splits, schema):
        self.left = [split.decode() for split in splits]
        self.schema = schema
        self.told = []
        self.closed = False

    def poll(self, max_rows, now_ms):
        while self.left and not self.left[0]:
            self.left.pop(0)
        if not self.left:
            return End()
        if self.left[0][0] == ".":
            self.left[0] = self.left[0][1:]
            return Pause(wait_ms=7)
        taken, self.left[0] = self.left[0][:max_rows].split(".")[0], self.left[0]
        self.left[0] = self.left[0][len(taken) :]
        return pa.record_batch([pa.array(list(taken))], schema=self.schema)

    def snapshot(self):
        return [text.encode() for text in self.left if text]

    def checkpoint_completed(self, checkpoint):
        self.told.append(checkpoint)

    def close(self):
        self.closed = True


@dataclass(frozen=True)
class Alphabet(Source):
    readers: list[Letters]
    returned: pa.Schema = SCHEMA

    @property
    def schema(self) -> pa.Schema:
        return SCHEMA

    def splits(self, parallelism: int) -> list[bytes]:
        raise NotImplementedError

    def open(self, splits: Sequence[bytes]) -> SourceReader:
        self.readers.append(Letters(splits, self.returned))
        return self.readers[-1]


def drain(made, max_rows=2):
    """Poll to the end and hand everything down the chain, as a task does."""
    while not isinstance(polled := made.operator.poll(max_rows, made.time), End):
        if isinstance(polled, pa.RecordBatch):
            made.operator.process(polled)
    return "".join(row["text"] for row in made.output.rows)


def test_a_fresh_start_deals_splits_out_in_turn(rig):
    step = ReadStep(source=Alphabet([]), splits=(b"ab", b"cd", b"ef", b"gh", b"ij"))
    read = [drain(rig(step, subtask=i, parallelism=3)) for i in range(3)]
    assert read == ["abgh", "cdij", "ef"]


def test_a_restore_reads_on_from_the_positions_and_never_deals_again(rig):
    step = ReadStep(source=Alphabet([]), splits=(b"abcde", b"xyz"))
    before = rig(step)
    before.operator.process(before.operator.poll(2, before.time))
    state = before.snapshot()
    before.operator.poll(2, before.time)
    assert state.split_lists == {"splits": (b"cde", b"xyz")}
    assert drain(rig(step, restored=[state])) == "cdexyz"
    assert drain(rig(step, restored=[])) == ""


def test_the_state_of_several_subtasks_is_read_by_one(rig):
    step = ReadStep(source=Alphabet([]), splits=(b"abc", b"xyz"))
    states = [rig(step, subtask=i, parallelism=2).snapshot() for i in range(2)]
    assert drain(rig(step, restored=states)) == "abcxyz"


def test_pauses_are_passed_on_and_the_end_is_final(rig):
    made = rig(ReadStep(source=Alphabet([]), splits=(b"a..",)))
    polled = [made.operator.poll(9, made.time) for _ in range(5)]
    assert [type(p).__name__ for p in polled] == ["RecordBatch", "Pause", "Pause", "End", "End"]
    assert polled[1] == Pause(wait_ms=7)
    assert made.snapshot().split_lists == {"splits": ()}


def test_the_end_of_data_is_the_end_of_event_time(rig):
    made = rig(ReadStep(source=Alphabet([]), splits=()))
    assert made.operator.poll(9, made.time) == End()
    made.operator.finish()
    assert made.output.items == [(MAX_WATERMARK, False)]


def test_the_reader_hears_of_completed_checkpoints_and_is_closed_once(rig):
    source = Alphabet([])
    made = rig(ReadStep(source=source, splits=(b"a",)))
    made.operator.completed(4)
    made.operator.close()
    made.operator.close()
    assert source.readers[0].told == [4]
    assert source.readers[0].closed
    assert made.operator.poll(1, made.time) == End()


def test_a_batch_of_another_schema_is_refused(rig):
    other = pa.schema([("text", pa.large_string())])
    made = rig(ReadStep(source=Alphabet([], returned=other), splits=(b"a",)))
    with pytest.raises(UsageError, match="returned columns text: large_string, but its schema has text: string"):
        made.operator.poll(1, made.time)
