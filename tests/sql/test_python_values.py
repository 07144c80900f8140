"""Times that Arrow has and Python does not have, wherever values are made for Python or for people."""

from __future__ import annotations

import datetime

import pyarrow as pa
import pytest

import penstock as ps
from penstock.api.fetching import digest_of
from penstock.connectors.partitions import by_partition
from penstock.core.errors import UsageError
from penstock.sql.python_values import rows_of, shown_rows, shown_values, table_rows
from penstock.testing import collect, run, scripted

YEAR_10000 = 253_402_300_800_000_000
"""In microseconds since 1970."""
DAY_10000 = YEAR_10000 // 86_400_000_000


@pytest.fixture
def far():
    return scripted([{"k": 1, "at": YEAR_10000}], schema="k bigint, at timestamp")


@pytest.mark.parametrize(
    ("number", "kind", "text"),
    [
        (YEAR_10000 + 500_000, pa.timestamp("us"), "+10000-01-01 00:00:00.5"),
        (YEAR_10000, pa.timestamp("us", "Asia/Tokyo"), "+10000-01-01 00:00:00"),
        (YEAR_10000 // 1_000, pa.timestamp("ms"), "+10000-01-01 00:00:00"),
        (-(2**63), pa.timestamp("us"), "-9223372036854775808 us since 1970"),
    ],
)
def test_a_time_without_an_equal_in_python_is_shown_as_a_text(number, kind, text):
    column = pa.array([number, None]).cast(kind)
    assert shown_values(column) == [text, None]
    assert shown_values(pa.chunked_array([column])) == [text, None]
    with pytest.raises(UsageError, match="column 'at'"):
        table_rows(pa.table({"at": column}))


@pytest.mark.parametrize(
    "names",
    [
        ("a",),
        ("v1", "v0", "columns", "zip"),
        ("it's", 'a "name"', "back\\slash", "line\nbreak", "{brace}", "", " "),
        ("grün", "名前", "\x00\0", "None", "__class__"),
        tuple(f"column {number}" for number in range(300)),
    ],
)
def test_rows_have_the_names_of_the_columns_whatever_the_names_are(names):
    columns = {name: [number, None, -number] for number, name in enumerate(names)}
    expected = [{name: column[place] for name, column in columns.items()} for place in range(3)]
    found = rows_of(pa.record_batch(columns))
    assert found == expected
    assert [list(row) for row in found] == [list(names)] * 3


def test_a_batch_without_columns_has_no_rows():
    assert rows_of(pa.record_batch({})) == []


def test_times_inside_of_other_values_are_shown_too():
    at = pa.array([YEAR_10000]).cast(pa.timestamp("us"))
    day = pa.array([DAY_10000], pa.int32()).view(pa.date32())
    ends, one = pa.array([0, 1], pa.int32()), pa.array([1], pa.int64())
    columns = {
        "list": pa.ListArray.from_arrays(ends, at),
        "struct": pa.StructArray.from_arrays([at, one], ["at", "n"]),
        "map": pa.MapArray.from_arrays(ends, one, day),
        "day": day,
    }
    text = "+10000-01-01 00:00:00"
    expected = {"list": [text], "struct": {"at": text, "n": 1}, "map": [(1, "+10000-01-01")], "day": "+10000-01-01"}
    assert shown_rows(pa.table(columns)) == [expected]
    for name, column in columns.items():
        with pytest.raises(UsageError, match=f"column '{name}': a value of type .* has no equal in Python"):
            rows_of(pa.record_batch({name: column}))


def test_rows_that_python_has_are_shown_as_they_are():
    table = pa.table({"at": pa.array([0, None]).cast(pa.timestamp("us", "UTC")), "n": [1.5, None]})
    assert shown_rows(table) == table.to_pylist() == table_rows(table)


def test_a_print_goes_on_with_a_time_that_python_does_not_have(far, capsys):
    run(lambda env: env.read(far).print())
    assert capsys.readouterr().out == "{k: 1, at: +10000-01-01 00:00:00}\n"


def test_a_look_at_rows_names_the_column_of_such_a_time(far, capsys):
    looks = (lambda stream: stream.take(1), lambda stream: stream.collect())

    def build(env):
        stream = env.read(far)
        for look in looks:
            with pytest.raises(UsageError, match=r"column 'at': a value of type timestamp.* has no equal in Python"):
                look(stream)
        stream.show(truncate=None)
        stream.write(sink)

    sink = collect()
    with pytest.raises(UsageError, match="column 'at'"):
        run(build)
    assert sink.to_arrow().num_rows == 1
    assert "|1  |+10000-01-01 00:00:00|" in capsys.readouterr().out


class Latest(ps.AggregateFunction):
    state_type = "timestamp"
    result_type = "timestamp"

    def create(self):
        return datetime.datetime(1, 1, 1, tzinfo=datetime.UTC)

    def add(self, state, row):
        return max(state, row["at"])

    def merge(self, a, b):
        return max(a, b)

    def result(self, state):
        return state


def test_an_aggregate_of_the_users_names_the_column_of_such_a_time(far):
    def build(env):
        stream = env.read(far).watermark("at", delay="1s")
        stream.key_by("k").window(ps.tumbling("1h")).aggregate(latest=Latest("at")).write(collect())

    with pytest.raises(ps.JobFailed, match=r"column 'at': a value of type timestamp.* has no equal in Python"):
        run(build)


def test_a_function_may_give_such_times_as_numbers():
    def numbers():
        yield {"at": YEAR_10000}

    sink = collect()

    def build(env):
        env.from_iterable(numbers, schema="at timestamp").write(sink)

    with pytest.raises(UsageError, match="column 'at'"):
        run(build)
    assert sink.to_arrow().column("at").cast(pa.int64()).to_pylist() == [YEAR_10000]


def test_a_row_with_such_a_time_can_be_recognized_when_it_is_read_again():
    rows = [pa.record_batch({"at": pa.array([YEAR_10000 + n]).cast(pa.timestamp("us"))}) for n in (0, 0, 1)]
    same, again, other = map(digest_of, rows)
    assert same == again != other


def test_a_folder_of_such_a_day_has_the_name_that_spark_gives_it():
    day = pa.array([DAY_10000], pa.int32()).view(pa.date32())
    assert [name for name, _ in by_partition(pa.table({"day": day, "n": [1]}), ["day"])] == ["day=+10000-01-01"]
