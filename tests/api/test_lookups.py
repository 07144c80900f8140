"""Lookups: records joined with what another system says about their keys."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from typing import Any

import pytest

import penstock as ps
from penstock.api.lookups import Answers
from penstock.core.errors import UsageError
from penstock.testing import run

NAMES = {1: [{"name": "ann"}], 2: [{"name": "bob"}, {"name": "ben"}], 4: []}
KEYS = [1, 2, 3, None, 1, 4, 2]
ASKED: Counter[Any] = Counter()
"""How often each customer was asked about, in all processes."""


class Customers(ps.AsyncFunction):
    """Knows some customers."""

    async def on_row(self, row: dict[str, Any]) -> list[dict[str, Any]] | None:
        ASKED[row["customer"]] += 1
        await asyncio.sleep(0.01)
        return NAMES.get(row["customer"])


def looked_up(how: Any, *, crashes: int = 0, **words: Any) -> list[tuple[Any, ...]]:
    def program(env: Any) -> None:
        rows = [{"id": number, "customer": key} for number, key in enumerate(KEYS)]
        orders = env.from_iterable(rows, schema="id bigint, customer bigint")
        schema = None if how in ("semi", "anti") else "name string"
        orders.lookup(Customers(), on="customer", schema=schema, how=how, **words).write(ps.collect())

    return sorted((tuple(row.values()) for row in run(program, crashes=crashes, parallelism=1)), key=repr)


@pytest.mark.parametrize("crashes", [0, 2])
@pytest.mark.parametrize("how", ["left", "inner", "semi", "anti"])
def test_each_record_meets_the_answers_about_its_key(how: str, crashes: int):
    expected: list[tuple[Any, ...]] = []
    for number, key in enumerate(KEYS):
        names = [row["name"] for row in NAMES.get(key, [])] if key is not None else []
        if how in ("semi", "anti"):
            expected += [(number, key)] if bool(names) is (how == "semi") else []
        else:
            expected += [(number, key, name) for name in names or ([None] if how == "left" else [])]
    assert looked_up(how, crashes=crashes) == sorted(expected, key=repr)


def test_a_key_is_asked_about_once():
    ASKED.clear()
    looked_up("left")
    assert ASKED == {1: 1, 2: 1, 3: 1, 4: 1}


def test_answers_are_kept_for_a_time_and_up_to_a_number():
    answers = Answers(2, 10.0)
    answers.put((1,), [], 0.0)
    answers.put((2,), [{"a": 1}], 0.0)
    assert answers.get((1,), 9.9) == []
    answers.put((3,), [], 5.0)
    assert answers.get((2,), 6.0) is None
    assert (answers.get((1,), 9.9), answers.get((3,), 9.9)) == ([], [])
    assert answers.get((1,), 10.0) is None


def test_nan_and_zeros_are_one_key_each():
    async def told(row: dict[str, Any]) -> dict[str, Any]:
        return {"text": "nan" if math.isnan(row["x"]) else "zero"}

    def program(env: Any) -> None:
        rows = [{"x": x} for x in (math.nan, 0.0, -0.0)]
        env.from_iterable(rows, schema="x double").lookup(told, on="x", schema="text string").write(ps.collect())

    assert sorted(row["text"] for row in run(program)) == ["nan", "zero", "zero"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"schema": None}, "lookup needs the columns of an answer"),
        ({"how": "semi"}, "hands on no columns of answers"),
        ({"how": "right"}, "how='right' does not exist for this join; there are inner, left, semi, anti"),
        ({"on": "idd"}, "there is no column 'idd'"),
        ({"schema": "id string"}, "the stream has a column 'id', and so have the answers"),
        ({"cache_rows": 0}, "cache_rows is 0"),
        ({"cache_for": 5}, "cache_for is 5, which has no unit"),
    ],
)
def test_mistakes_are_found_when_the_program_is_built(words: dict[str, Any], said: str):
    async def nothing(row: dict[str, Any]) -> None:
        """Knows nothing."""

    def program(env: Any) -> None:
        given = {"on": "id", "schema": "name string", **words}
        env.from_iterable([{"id": 1}]).lookup(nothing, **given).write(ps.collect())

    with pytest.raises(UsageError) as raised:
        run(program)
    assert said in str(raised.value)


@pytest.mark.parametrize("answer", [5, {"title": "ann"}, ["ann"]])
def test_a_wrong_answer_ends_the_job(answer: Any):
    async def wrong(row: dict[str, Any]) -> Any:
        return answer

    def program(env: Any) -> None:
        env.from_iterable([{"id": 1}]).lookup(wrong, on="id", schema="name string").write(ps.collect())

    with pytest.raises(Exception, match="lookup"):
        run(program)
