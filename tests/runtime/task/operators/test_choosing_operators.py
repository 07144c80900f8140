"""Which records go on: the records that are chosen, unchanged and in their order."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.api.steps import FilterStep, SampleStep
from penstock.core.errors import UserCodeError

SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False), ("text", pa.dictionary(pa.int32(), pa.string()))])
BATCH = pa.RecordBatch.from_arrays([pa.array([1, 2, 3]), pa.array(["a", "b", None]).dictionary_encode()], schema=SCHEMA)


@pytest.fixture
def chosen(rig):
    """The batches that a step makes of one batch."""

    def run(step, batch=BATCH):
        made = rig(step, subtask=1, parallelism=2)
        made.operator.process(batch)
        return made.output.items

    return run


# --- by a function ---------------------------------------------------------------------------------------------------


def by(function):
    return FilterStep(function=function, schema=SCHEMA)


def test_records_go_on_for_which_the_function_returns_a_true_value(chosen):
    assert [batch.to_pylist() for batch in chosen(by(lambda row: row["n"] - 2))] == [
        [{"n": 1, "text": "a"}, {"n": 3, "text": None}]
    ]


def test_chosen_records_keep_their_types_and_metadata(chosen):
    (batch,) = chosen(by(lambda row: row["text"]))
    assert batch.schema.equals(SCHEMA, check_metadata=True)


def test_a_batch_of_which_all_records_are_chosen_is_not_copied(chosen):
    (batch,) = chosen(by(lambda row: [row]))
    assert batch is BATCH


@pytest.mark.parametrize("value", [None, 0, "", [], False])
def test_no_batch_goes_on_if_no_record_is_chosen(chosen, value):
    assert chosen(by(lambda row: value)) == []
    assert chosen(by(lambda row: True), BATCH.slice(0, 0)) == []


def test_rows_are_handed_to_the_function_in_slices(rig):
    assert rig(by(bool)).operator.is_row_wise


class Neither:
    def __bool__(self):
        raise ValueError("neither true nor false")


def raises(row):
    return {}[row["n"]]


@pytest.mark.parametrize(("function", "last"), [(raises, "KeyError: 1"), (lambda row: Neither(), "neither true nor")])
def test_an_error_of_the_function_is_an_error_of_user_code(chosen, function, last):
    with pytest.raises(UserCodeError) as caught:
        chosen(by(function))
    assert (caught.value.operator, caught.value.subtask) == ("the step", 1)
    assert last in caught.value.traceback_text.splitlines()[-1]


async def later(row):
    return False


async def now_and_later(row):
    yield False


@pytest.mark.parametrize("function", [later, now_and_later])
@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
def test_what_an_async_function_returns_is_not_taken_for_true(chosen, function):
    with pytest.raises(UserCodeError, match=r"expected a true or false value; got (coroutine|async_generator)"):
        chosen(by(function))


# --- by a hash -------------------------------------------------------------------------------------------------------

PAIRS = pa.record_batch(
    {
        "a": [n // 100 for n in range(10_000)],
        "b": [n % 100 for n in range(10_000)],
        "s": [f"{n:x}" for n in range(10_000)],
    }
)


def part(fraction, *columns, seed=0):
    return SampleStep(columns=columns, fraction=fraction, seed=seed, schema=PAIRS.schema)


def rows(batches):
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


@pytest.mark.parametrize("columns", [("a", "b"), ("s",), ("a", "b", "s")])
@pytest.mark.parametrize("fraction", [0.01, 0.5, 0.9])
def test_about_the_fraction_of_the_records_goes_on(chosen, columns, fraction):
    """The limits are four standard deviations of a fair choice."""
    count = len(rows(chosen(part(fraction, *columns), PAIRS)))
    assert abs(count - 10_000 * fraction) < 4 * (10_000 * fraction * (1 - fraction)) ** 0.5


def test_all_records_or_none(chosen):
    assert chosen(part(1.0, "a"), PAIRS) == [PAIRS]
    assert chosen(part(0.0, "a"), PAIRS) == []
    assert chosen(part(1.0, "a"), PAIRS.slice(0, 0)) == []


def test_a_record_is_decided_by_its_values_alone(chosen):
    whole = rows(chosen(part(0.3, "a", "b"), PAIRS))
    backwards = PAIRS.take(pa.array(range(9_999, -1, -1)))
    pieces = [
        row for start in range(0, 10_000, 7) for row in rows(chosen(part(0.3, "a", "b"), backwards.slice(start, 7)))
    ]
    assert sorted(pieces) == sorted(whole)


def test_another_seed_chooses_other_records(chosen):
    one, other = (set(rows(chosen(part(0.5, "a", "b", seed=seed), PAIRS))) for seed in (1, -1))
    assert 2_000 < len(one & other) < 3_000


def test_all_records_with_a_value_go_on_or_none(chosen):
    kept = rows(chosen(part(0.5, "a"), PAIRS))
    assert len({row[0] for row in kept}) * 100 == len(kept)
