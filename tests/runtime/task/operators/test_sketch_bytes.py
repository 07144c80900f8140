"""The bytes of sketches, as they may be in a snapshot that somebody else has changed."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pytest

from penstock.api.aggregate_kinds.base import Groups
from penstock.api.aggregate_kinds.registry import kind_of
from penstock.api.aggregate_kinds.sketch_bytes import check_distinct, check_ranks
from penstock.api.aggregate_kinds.sketches import RANK_SIZE, register_bits
from penstock.api.steps import Aggregate
from penstock.core.errors import CorruptFile

datasketches = pytest.importorskip("datasketches", reason="the extra sketches is not installed")

DEVIATION = 0.05
BITS = register_bits(DEVIATION)


def distinct(values, *, bits=BITS):
    sketch = datasketches.hll_sketch(bits, datasketches.HLL_8)
    for value in range(values):
        sketch.update(value)
    return sketch


def united(values, *, bits=BITS):
    union = datasketches.hll_union(bits)
    union.update(distinct(values, bits=bits))
    union.update(distinct(7, bits=bits))
    return union.get_result(datasketches.HLL_8)


def ranks(values):
    sketch = datasketches.kll_doubles_sketch(RANK_SIZE)
    sketch.update(np.arange(values, dtype=float))
    return sketch


def changed(data, place, form, *values):
    return data[:place] + struct.pack(form, *values) + data[place + struct.calcsize(form) :]


@pytest.mark.parametrize("bits", [4, 7, 12])
@pytest.mark.parametrize("values", [0, 1, 7, 8, 20, 200, 5_000])
def test_every_sketch_of_the_library_is_accepted(bits, values):
    for made in (distinct(values, bits=bits), united(values, bits=bits)):
        data = made.serialize_compact()
        assert check_distinct(data, bits) == data
    merged = ranks(values)
    merged.merge(ranks(201))
    for sketch in (ranks(values), merged):
        data = sketch.serialize()
        assert check_ranks(data, RANK_SIZE) == data


LIST, SET, REGISTERS = (distinct(values).serialize_compact() for values in (5, 40, 5_000))
CHANGED_COUNTS = {
    "missing": None,
    "nothing": b"",
    "cut": REGISTERS[:-1],
    "longer": REGISTERS + b"\0",
    "more registers than there are": changed(REGISTERS, 3, "B", 21),
    "a list that is longer": changed(LIST, 6, "B", 255),
    "a list of a size that overflows": changed(LIST, 4, "B", 200),
    "a set that is longer": changed(SET, 8, "<I", 2**31),
    "a set that is full": changed(SET, 4, "B", 5),
    "a set of a size that overflows": changed(SET, 4, "B", 63),
    "another family": changed(LIST, 2, "B", 15),
    "registers of four bits": changed(REGISTERS, 7, "B", 2),
    "registers that are not compact": changed(REGISTERS, 5, "B", 0),
    "a register of eight bits": changed(REGISTERS, 100, "B", 255),
    "other registers than it counts": changed(REGISTERS, 36, "<I", 2**30),
    "a sum that is none": changed(REGISTERS, 16, "<d", float("nan")),
}


@pytest.mark.parametrize("data", CHANGED_COUNTS.values(), ids=CHANGED_COUNTS)
def test_a_changed_distinct_count_is_a_corrupt_file(data):
    with pytest.raises(CorruptFile, match="a sketch of approx_count_distinct cannot be read"):
        check_distinct(data, BITS)


LEVELS = ranks(5_000).serialize()
CHANGED_RANKS = {
    "missing": None,
    "nothing": b"",
    "cut": LEVELS[:-8],
    "longer": LEVELS + b"\0" * 8,
    "more levels": changed(LEVELS, 18, "B", 255),
    "no levels": changed(LEVELS, 18, "B", 0),
    "a level that begins far away": changed(LEVELS, 24, "<I", 2**31),
    "levels out of order": changed(LEVELS, 24, "<I", 0),
    "another number of values": changed(LEVELS, 8, "<Q", 2**63),
    "no values": changed(ranks(2).serialize(), 8, "<Q", 0),
    "another size": changed(LEVELS, 4, "<H", 8),
    "another least size": changed(LEVELS, 16, "<H", 60_000),
    "a level of another width": changed(LEVELS, 6, "B", 200),
    "empty, with values": changed(LEVELS, 3, "B", 1),
    "a single value, with more": changed(LEVELS, 3, "B", 4),
    "NaN among the values": changed(LEVELS, len(LEVELS) - 8, "<d", float("nan")),
    "NaN as the single value": changed(ranks(1).serialize(), 8, "<d", float("nan")),
}


@pytest.mark.parametrize("data", CHANGED_RANKS.values(), ids=CHANGED_RANKS)
def test_a_changed_quantile_is_a_corrupt_file(data):
    with pytest.raises(CorruptFile, match="a sketch of approx_quantile cannot be read"):
        check_ranks(data, RANK_SIZE)


def test_the_library_reads_no_bytes_before_they_are_looked_at():
    """In a process of its own: without the look at the bytes, the library ends the process."""
    found = subprocess.run([sys.executable, __file__], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (0, "all are read or refused\n"), found.stderr


def read_changed(seed, rounds):
    """Merge and finish sketches with changed bytes."""
    chance = random.Random(seed)
    counted = Aggregate(name="x", kind="approx_count_distinct", column="v", parameters=(DEVIATION,))
    ranked = Aggregate(name="x", kind="approx_quantile", column="v", parameters=(0.5,))
    originals = [(counted, LIST), (counted, SET), (counted, REGISTERS)]
    originals += [(ranked, LEVELS), (ranked, ranks(150).serialize())]
    for _ in range(rounds):
        aggregate, data = chance.choice(originals)
        for _ in range(chance.choice([1, 1, 2, 4])):
            data = changed(data, chance.randrange(min(len(data), 64)), "B", chance.choice([0, 1, 127, 255]))
        column = pa.array([data, data], pa.binary())
        if aggregate is ranked:
            column = pa.StructArray.from_arrays([column, pa.array([0, 0])], ["sketch", "nans"])
        with suppress(CorruptFile):
            merge(aggregate, pa.table({"x": column}))
        with suppress(CorruptFile):
            kind_of(aggregate).result(aggregate, pa.table({"x": column}))


def merge(aggregate, table):
    (calculation,) = kind_of(aggregate).of_partials(aggregate)
    calculation.function(table, Groups(np.arange(2), np.array([0])))


if __name__ == "__main__":
    read_changed(1, 3_000)
    sys.stdout.write("all are read or refused\n")
