"""The arithmetic kernels, held to plain Python over any values."""

from __future__ import annotations

import math
from decimal import ROUND_HALF_UP, Decimal

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.exceptions import ComputeError

from penstock.sql.kernels import Checked, Remainder, RoundHalfUp

LEAST, MOST = -(2**63), 2**63 - 1
longs = st.one_of(st.integers(LEAST, MOST), st.integers(-3, 3), st.sampled_from([LEAST, MOST]))
maybe_longs = st.one_of(st.none(), longs)
doubles = st.one_of(st.none(), st.floats(), st.floats(-1000, 1000).map(lambda x: round(x, 3)))


def truncated(a, b):
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


EXACT = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": truncated,
}


@pytest.mark.parametrize("function", EXACT)
@given(pairs=st.lists(st.tuples(maybe_longs, maybe_longs), min_size=1, max_size=8))
def test_whole_numbers_are_exact_or_refused(function, pairs):
    columns = [pl.Series([pair[side] for pair in pairs], dtype=pl.Int64) for side in (0, 1)]
    kernel = Checked(f"{function}_checked", "a ? b")
    whole = [(a, b) for a, b in pairs if a is not None and b is not None]
    if function == "divide" and any(b == 0 for _, b in whole):
        with pytest.raises(ComputeError, match=r"division by zero in 'a \? b'|out of range"):
            kernel(columns)
        return
    expected = [None if a is None or b is None else EXACT[function](a, b) for a, b in pairs]
    if all(value is None or LEAST <= value <= MOST for value in expected):
        assert kernel(columns).to_list() == expected
    else:
        with pytest.raises(ComputeError, match=r"the result of 'a \? b' is out of range"):
            kernel(columns)


@given(pairs=st.lists(st.tuples(maybe_longs, maybe_longs.filter(lambda b: b != 0)), min_size=1, max_size=8))
def test_a_remainder_has_the_sign_of_the_dividend(pairs):
    columns = [pl.Series([pair[side] for pair in pairs], dtype=pl.Int64) for side in (0, 1)]
    expected = [None if a is None or b is None else a - b * truncated(a, b) for a, b in pairs]
    assert Remainder(positive=False, text="a % b")(columns).to_list() == expected


@given(pairs=st.lists(st.tuples(maybe_longs, st.integers(1, MOST)), min_size=1, max_size=8))
def test_a_positive_remainder_is_that_of_mathematics(pairs):
    columns = [pl.Series([pair[side] for pair in pairs], dtype=pl.Int64) for side in (0, 1)]
    expected = [None if a is None else a % b for a, b in pairs]
    assert Remainder(positive=True, text="pmod(a, b)")(columns).to_list() == expected


def test_a_zero_divides_only_where_nothing_is_divided():
    dividend, divisor = pl.Series([None, 7], dtype=pl.Int64), pl.Series([0, 2], dtype=pl.Int64)
    assert Remainder(positive=False, text="a % b")([dividend, divisor]).to_list() == [None, 1]
    assert Checked("divide_checked", "a div b")([dividend, divisor]).to_list() == [None, 3]
    with pytest.raises(ComputeError, match="division by zero in 'a % b'"):
        Remainder(positive=False, text="a % b")([divisor, pl.Series([0, 1], dtype=pl.Int64)])


@given(values=st.lists(doubles, min_size=1, max_size=8), digits=st.integers(0, 15))
def test_rounding_is_that_of_the_written_number(values, digits):
    result = RoundHalfUp(digits)([pl.Series(values, dtype=pl.Float64)]).to_list()
    for value, rounded in zip(values, result, strict=True):
        if value is None or math.isnan(value) or math.isinf(value):
            assert rounded == value or (value is not None and math.isnan(value) and math.isnan(rounded))
        else:
            written = Decimal(str(value))
            needs_rounding = -int(written.as_tuple().exponent) > digits
            expected = written.quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP) if needs_rounding else written
            assert rounded == float(expected)


def test_a_constant_is_repeated_for_every_row():
    column, constant = pl.Series([1, None, 3], dtype=pl.Int64), pl.Series([10], dtype=pl.Int64)
    assert Checked("add_checked", "a + 10")([column, constant]).to_list() == [11, None, 13]
    assert Remainder(positive=False, text="a % 10")([column, constant]).to_list() == [1, None, 3]
    assert Checked("add_checked", "a + 10")([column.head(0), constant]).to_list() == []
    assert Remainder(positive=False, text="a % 10")([column.head(0), constant]).to_list() == []
    assert Checked("add_checked", "10 + 10")([constant, constant]).to_list() == [20]
