"""What `top` and `deduplicate` refuse when a program is built, and what is known about the records behind them."""

from __future__ import annotations

import pytest

import penstock as ps
from penstock.api.program import Program
from penstock.core.errors import UsageError

SCHEMA = "id bigint, price double, tags array<string>, ts timestamp"


def rows(*, timed=False):
    stream = Program().from_iterable([], schema=SCHEMA)
    return stream.watermark("ts") if timed else stream


def test_top_says_what_identifies_a_row():
    keyed = rows(timed=True).key_by("id")
    assert repr(keyed.top(1, by="price")).endswith("row_kind string; a changelog by id>")
    assert repr(keyed.top(2, by="price", rank="place")).endswith(
        "place int32, row_kind string; a changelog by id, place>"
    )
    assert repr(keyed.top(2, by=["price", "ts"], descending=[True, False])).endswith("; a changelog>")
    assert keyed.top(1, by="price").upserts().schema.names[-1] == "row_kind"
    with pytest.raises(UsageError, match="upserts needs the columns that identify a row"):
        keyed.top(2, by="price").upserts()


def test_a_window_shows_its_first_records_with_event_time():
    best = rows(timed=True).key_by("id").window(ps.tumbling("10s")).top(3, by="price", rank="place")
    assert best.schema.names == ["id", "window_start", "window_end", "price", "tags", "ts", "place"]
    assert "event time in window_end -1 us" in repr(best)
    assert best.late().schema.names == ["id", "price", "tags", "ts"]


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"by": "prize"}, "'prize' does not exist|did you mean 'price'"),
        ({"by": "tags"}, "cannot be ordered by column 'tags'"),
        ({"by": "id"}, "all records of a key are equal in id"),
        ({"by": []}, "one or several columns"),
        ({"by": ["price", "ts"], "descending": [True]}, "one direction for all or one for each"),
        ({"by": "price", "n": 0}, "a whole number above 0"),
        ({"by": "price", "rank": "ts"}, "the name of a column that is not there yet"),
        ({"by": 5}, "names of columns"),
    ],
)
def test_top_refuses_what_has_no_order(how, says):
    given = {"n": 3, **how}
    for keyed in (rows().key_by("id"), rows(timed=True).key_by("id").window(ps.tumbling("1s"))):
        with pytest.raises(UsageError) as caught:
            keyed.top(given.pop("n", 3), **given)
        given = {"n": 3, **how}
        assert any(each in f"{caught.value} {caught.value.hint}" for each in says.split("|"))


def test_top_of_a_changelog_needs_rows_that_can_be_taken_back():
    counts = rows().key_by("id").aggregate(n=ps.count(), tags=ps.collect_list("price"))
    with pytest.raises(UsageError, match="cannot be taken back"):
        counts.key_by("n").top(2, by="id")
    with pytest.raises(UsageError, match=r"upserts\(\) has left that out"):
        counts.drop("tags").upserts().key_by("n").top(2, by="id")


def test_a_window_of_windows_says_which_column_is_there_twice():
    counts = rows(timed=True).key_by("id").window(ps.tumbling("1s")).aggregate(n=ps.count())
    with pytest.raises(UsageError, match="a column 'window_end' anyway"):
        counts.window(ps.tumbling("10s")).top(3, by="n")
    with pytest.raises(UsageError, match="a column 'window_end' anyway"):
        rows(timed=True).window(ps.tumbling("10s")).top(3, by="price", rank="window_end")


def test_deduplicate_keeps_event_time_only_if_records_go_on_as_they_came():
    first = rows(timed=True).deduplicate("id", within="1h")
    assert "event time in ts" in repr(first)
    assert first.late().schema.equals(first.schema)
    last = rows(timed=True).deduplicate("id", within="1h", keep="last")
    assert repr(last).endswith("; a changelog>")
    assert last.late().schema.names == ["id", "price", "tags", "ts"]
    assert repr(rows(timed=True).deduplicate(["id", "price"], keep="last")).endswith("; a changelog by id, price>")
    assert "changelog" not in repr(rows().deduplicate("id", ttl="1h"))


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"within": "1h"}, "needs event time"),
        ({"keep": "newest"}, "choose 'first' or 'last'"),
        ({"by": "ids"}, "did you mean 'id'"),
        ({"by": "tags"}, "cannot be a key"),
        ({"by": []}, "at least one column"),
    ],
)
def test_deduplicate_refuses(how, says):
    with pytest.raises(UsageError) as caught:
        rows().deduplicate(**{"by": "id", **how})
    assert says in f"{caught.value} {caught.value.hint}"


def test_deduplicate_refuses_what_cannot_be_forgotten_in_both_ways():
    with pytest.raises(UsageError, match="within and ttl were both given"):
        rows(timed=True).deduplicate("id", within="1h", ttl="1h")
    with pytest.raises(UsageError, match="give a duration above 0"):
        rows(timed=True).deduplicate("id", within="0s")
    with pytest.raises(UsageError, match="equal in all columns"):
        rows().select("id").deduplicate("id", keep="last")
    with pytest.raises(UsageError, match=r"call \.changes\(\) before"):
        rows().key_by("id").aggregate(n=ps.count()).deduplicate("id")


def test_state_has_names_that_stay():
    env = Program()
    stream = env.from_iterable([], schema=SCHEMA).watermark("ts")
    stream.deduplicate("id").write(ps.collect())
    stream.deduplicate("id", within="1h", name="hourly").write(ps.collect())
    stream.key_by("id").top(3, by="price").write(ps.collect())
    text = str(env.explain())
    assert all(each in text for each in ("iterable.deduplicate-id", "hourly", "iterable.top-id"))
