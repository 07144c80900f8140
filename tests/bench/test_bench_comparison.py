"""Every kind of damage is found, and counted as what it is."""

from __future__ import annotations

import pytest

from penstock.bench.comparison import Comparison, compare

ROWS = [
    (auction, window, window + 10, auction * window, auction + window) for auction in (1, 2, 3) for window in (0, 10)
]
SCHEMA = "auction BIGINT, window_start BIGINT, window_end BIGINT, n BIGINT, top BIGINT"
KEYS = ("auction", "window_start")
VALUES = ("window_end", "n", "top")


def without(*numbers):
    return [row for number, row in enumerate(ROWS) if number not in numbers]


def changed(number, column, value):
    rows = list(ROWS)
    row = list(rows[number])
    row[column] = value
    rows[number] = tuple(row)
    return rows


@pytest.mark.parametrize(
    ("output", "damage"),
    [
        pytest.param(ROWS, (0, 0, 0), id="the same"),
        pytest.param(list(reversed(ROWS)), (0, 0, 0), id="in another order"),
        pytest.param([], (6, 0, 0), id="nothing at all"),
        pytest.param(without(2), (1, 0, 0), id="a row removed"),
        pytest.param(without(0, 5), (2, 0, 0), id="two rows removed"),
        pytest.param([*ROWS, ROWS[3]], (0, 1, 0), id="a row repeated"),
        pytest.param([*ROWS, ROWS[3], ROWS[3], ROWS[4]], (0, 3, 0), id="rows repeated more than once"),
        pytest.param([*ROWS, *ROWS], (0, 6, 0), id="everything twice"),
        pytest.param(changed(1, 3, 999), (0, 0, 1), id="another count"),
        pytest.param(changed(1, 4, 999), (0, 0, 1), id="another maximum"),
        pytest.param(changed(1, 2, 999), (0, 0, 1), id="another end of the window"),
        pytest.param(changed(1, 3, None), (0, 0, 1), id="no count"),
        pytest.param(changed(1, 0, 77), (1, 0, 1), id="another key"),
        pytest.param(changed(1, 0, None), (1, 0, 1), id="no key"),
        pytest.param([*ROWS, (77, 0, 10, 1, 1)], (0, 0, 1), id="a row of a key that does not exist"),
        pytest.param([*ROWS, (1, 0, 10, 999, 1)], (0, 1, 1), id="a row again with another count"),
        pytest.param([*without(0), ROWS[1], (2, 0, 10, 5, 5)], (1, 2, 1), id="everything at once"),
    ],
)
def test_damage_is_counted_as_what_it_is(spark, output, damage):
    found = compare(
        spark.createDataFrame(ROWS, SCHEMA), spark.createDataFrame(output, SCHEMA), keys=KEYS, values=VALUES
    )
    lost, duplicated, different = damage
    assert found == Comparison(rows=6, lost=lost, duplicated=duplicated, different=different)
    assert found.exactly_once is (damage == (0, 0, 0))


def test_nothing_compared_with_nothing_is_the_same(spark):
    empty = spark.createDataFrame([], SCHEMA)
    assert compare(empty, empty, keys=KEYS, values=VALUES) == Comparison(rows=0, lost=0, duplicated=0, different=0)


def test_a_value_that_is_missing_on_both_sides_is_the_same(spark):
    rows = [(1, 0, 10, None, 1)]
    frame = spark.createDataFrame(rows, SCHEMA)
    assert compare(frame, frame, keys=KEYS, values=VALUES).exactly_once
