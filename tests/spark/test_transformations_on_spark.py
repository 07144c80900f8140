"""Steps with fewer subtasks than slots, functions that place records, and first records, as Spark tasks."""

from __future__ import annotations

import sys

import cloudpickle
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import penstock as ps

# Slots cannot import this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

WORDS = ["to be or not", "to be that is", "the question"] * 50


class Placed(ps.ProcessFunction):
    """Adds the number of the subtask that handles a record."""

    def on_batch(self, batch, context):
        return batch.append_column("place", pa.array([context.subtask] * batch.num_rows, pa.int64()))


@pytest.mark.slow
def test_records_go_where_the_program_says_and_first_records_are_counted_once(spark, tmp_path):
    checkpointing = ps.Checkpointing(interval="1s", directory=tmp_path / "checkpoints", unaligned=True)
    env = ps.Environment(spark, parallelism=2, checkpointing=checkpointing)
    words = env.from_iterable(WORDS, schema="line string").select(word="explode(split(line, ' '))")
    placed = "word string, place bigint"
    first, distinct, one, chosen = ps.collect(), ps.collect(), ps.collect(), ps.collect()
    words.limit(17).write(first, name="first")
    words.distinct().write(distinct, name="distinct")
    words.global_().process(Placed(), schema=placed).write(one, name="one")
    by_letter = words.partition(lambda batch, subtasks: pc.if_else(pc.equal(batch["word"], "to"), subtasks - 1, 0))
    by_letter.process(Placed(), schema=placed).write(chosen, name="chosen")
    env.run("transformations")
    said = [word for line in WORDS for word in line.split()]
    assert len(first.rows) == 17
    assert sorted(row["word"] for row in distinct.rows) == sorted(set(said))
    assert sorted((row["word"], row["place"]) for row in one.rows) == sorted((word, 0) for word in said)
    assert sorted((row["word"], row["place"]) for row in chosen.rows) == sorted((w, int(w == "to")) for w in said)
