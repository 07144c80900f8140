"""A mistake in a name is told when the program is built, with the name that was probably meant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import penstock as ps
from penstock.api.program import Program
from penstock.core.errors import UsageError

MISTAKES: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "watermark": (lambda o, _: o.watermark("tss"), "'ts'"),
    "key_by": (lambda o, _: o.key_by("custmer"), "'customer'"),
    "aggregate": (lambda o, _: o.key_by("customer").aggregate(t=ps.sum("amont")), "'amount'"),  # codespell:ignore
    "split": (lambda o, _: o.split(errors="amount > 1").erors, "'errors'"),  # codespell:ignore
    "join on": (lambda o, p: o.join(p, on="orderid", within="1s"), "'order_id'"),
    "join how": (lambda o, p: o.join(p, on="order_id", within="1s", how="outr"), "'full'"),
    "versioned": (lambda _, p: p.versioned("crd"), "'card'"),
    "as_of": (lambda o, p: o.join(p.versioned("order_id"), on="order_id", as_of="tss"), "'ts'"),
    "deduplicate": (lambda o, _: o.deduplicate("orderid", within="1 h"), "'order_id'"),
    "top": (lambda o, _: o.key_by("customer").top(3, by="amout"), "'amount'"),  # codespell:ignore
    "sort": (lambda o, _: o.sort("amout"), "'amount'"),  # codespell:ignore
    "pattern": (lambda _, p: p.key_by("card").match(ps.pattern("a", where="pad < 1").within("1s")), "'paid'"),
    "part of a pattern": (
        lambda _, p: p.key_by("card").match(
            ps.pattern("small").followed_by("large", where="card = smal.card").within("1s"),  # codespell:ignore
        ),
        "'small'",
    ),
    "column of a match": (
        lambda _, p: p.key_by("card").match(ps.pattern("small").within("1s")).select("smal.at"),  # codespell:ignore
        "'small'",
    ),
    "function of SQL": (lambda o, _: o.select(n="lenght(customer)"), "length"),  # codespell:ignore
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_name_that_was_probably_meant_is_told(mistake: str):
    call, meant = MISTAKES[mistake]
    env = Program()
    orders = env.from_iterable(
        [], schema="order_id bigint, customer string, amount double, ts timestamp", name="orders"
    )
    payments = env.from_iterable([], schema="order_id bigint, card string, paid double, at timestamp", name="payments")
    with pytest.raises(UsageError) as raised:
        call(orders.watermark("ts"), payments.watermark("at"))
    assert f"did you mean {meant}" in str(raised.value)
