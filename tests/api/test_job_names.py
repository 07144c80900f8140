"""No two names of jobs have one id."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.api.job_names import job_slug
from penstock.core.errors import UsageError

ALIKE = [
    "orders-eu",
    "Orders EU",
    "orders.eu",
    "Orders-EU",
    "orders--eu",
    "orders-eu-",
    "заказы",
    "заказ",
    "订单",
    "訂單",
    "e\u0301t\u00e9",
    "\u00e9t\u00e9",
    "x" * 60,
    "x" * 61,
    "x" * 62,
    "y" * 60 + "1",
    "y" * 60 + "2",
]


def test_names_that_are_alike_have_different_ids():
    ids = [job_slug(name) for name in ALIKE]
    assert len(set(ids)) == len(ALIKE)
    # No id is the id of another name, either.
    assert len({*ids, *(job_slug(found) for found in ids if found not in ALIKE)}) == len(ids) + len(
        [found for found in ids if found not in ALIKE]
    )


@given(st.lists(st.text(min_size=1, max_size=80), min_size=2, max_size=6, unique=True))
def test_ids_are_short_plain_and_differ(names):
    usable = [name for name in names if any(c.isalnum() for c in name)]
    ids = [job_slug(name) for name in usable]
    assert len(set(ids)) == len(usable)
    assert all(re.fullmatch(r"[a-z0-9_]+(-[a-z0-9_]+)*", found) and len(found) <= 60 for found in ids)


@pytest.mark.parametrize("name", ["hot-auctions", "a", "orders_2", "x" * 60, "counts-0123abcd"])
def test_plain_names_stay_as_they_are(name):
    assert job_slug(name) == name


def test_a_name_shows_in_its_id():
    assert re.fullmatch(r"orders-eu-[0-9a-f]{16}", job_slug("Orders EU"))
    assert re.fullmatch(r"job-[0-9a-f]{16}", job_slug("订单"))


@pytest.mark.parametrize("name", ["", "  ", "-- ./", 7, None])
def test_what_is_no_name_is_refused(name):
    with pytest.raises(UsageError, match="name"):
        job_slug(name)


@pytest.mark.parametrize("name", ["names", "results", "savepoints", "savepoint-orders-0123-2"])
def test_no_job_has_the_folder_for_its_own_that_all_jobs_share(name: str):
    assert job_slug(name) != name
    assert job_slug(name).startswith(name)
