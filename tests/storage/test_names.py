"""Which job has a name."""

from __future__ import annotations

import uuid

import pytest

from penstock.api.job_names import job_slug
from penstock.core.errors import CorruptFile
from penstock.core.ids import JobId
from penstock.storage.files import FileStore
from penstock.storage.locations import open_store
from penstock.storage.names import Holder, JobName
from penstock.storage.seals import StoreOptions


def name_in(store, name):
    return JobName(store, name, job_slug(name))


@pytest.fixture(params=["files", "s3"])
def store(request, tmp_path):
    if request.param == "files":
        return FileStore(tmp_path)
    return open_store(request.getfixturevalue("s3").uri(f"names/{uuid.uuid4()}"))


def job_of(name: str, token: str) -> JobId:
    return JobId(f"{job_slug(name)}-{token}")


def test_a_name_that_nobody_had_has_no_holder(store):
    assert name_in(store, "orders").holder() == (0, None)


def test_a_name_is_given_once_to_whoever_knows_its_holder(store):
    name = name_in(store, "orders")
    assert name.give(job_of("orders", "a"), after=0)
    assert not name.give(job_of("orders", "b"), after=0)
    assert name.holder() == (1, Holder(name="orders", job=job_of("orders", "a")))
    assert name.give(job_of("orders", "b"), after=1, started_from="/saved", gives_up=(job_of("orders", "a"),))
    assert not name.give(job_of("orders", "c"), after=1)
    assert name.holder() == (
        2,
        Holder(name="orders", job=job_of("orders", "b"), started_from="/saved", gives_up=(job_of("orders", "a"),)),
    )
    assert len(store.list_files("")) == 1


class GivenOnMeanwhile(FileStore):
    """Whoever creates a file here sleeps first, while others give the name on, twice."""

    def create(self, path, data):
        others = name_in(FileStore(self.root), "orders")
        assert others.give(job_of("orders", "b"), after=1)
        assert others.give(job_of("orders", "c"), after=2)
        return super().create(path, data)


def test_a_driver_that_slept_while_others_gave_the_name_on_is_too_late(tmp_path):
    """The file that would have been in its way is gone by then."""
    name = name_in(FileStore(tmp_path), "orders")
    assert name.give(job_of("orders", "a"), after=0)
    assert not name_in(GivenOnMeanwhile(tmp_path), "orders").give(job_of("orders", "late"), after=1)
    assert name.holder() == (3, Holder(name="orders", job=job_of("orders", "c")))
    assert len(FileStore(tmp_path).list_files("")) == 1


def test_what_was_given_up_is_forgotten_when_nothing_is_left_of_it(store):
    name = name_in(store, "orders")
    name.give(job_of("orders", "b"), after=0, gives_up=(job_of("orders", "a"),))
    name.gave_up()
    name.gave_up()
    assert name.holder() == (1, Holder(name="orders", job=job_of("orders", "b")))


def test_names_that_look_alike_are_different(tmp_path):
    store = FileStore(tmp_path)
    names = ["Orders EU", "orders.eu", "orders eu", "заказы", "订单", "x" * 300, "x" * 301, "a/b", "../a", "a\udc80"]
    for number, name in enumerate(names):
        assert name_in(store, name).give(job_of(name, f"{number}"), after=0)
    found = [name_in(store, name).holder()[1] for name in names]
    assert [holder.job for holder in found if holder is not None] == [
        job_of(name, f"{n}") for n, name in enumerate(names)
    ]


def test_a_holder_that_cannot_be_read_is_told_and_not_taken_for_none(tmp_path):
    """Taken for none, the job would start over, and show everything again."""
    store, name = FileStore(tmp_path), name_in(FileStore(tmp_path), "orders")
    name.give(job_of("orders", "a"), after=0)
    (path,) = store.list_files("")
    store.write(path, store.read(path)[:-1])
    with pytest.raises(CorruptFile, match="instead of"):
        name.holder()


def test_who_does_not_have_the_key_cannot_give_a_name_to_a_job(tmp_path):
    sealed = FileStore(tmp_path, options=StoreOptions(seal=b"k" * 32))
    assert name_in(FileStore(tmp_path), "orders").give(job_of("orders", "crafted"), after=0)
    with pytest.raises(CorruptFile, match="is not sealed"):
        name_in(sealed, "orders").holder()


@pytest.mark.parametrize("job", ["", "other-1f2e", "orders", "orders-eu-1f2e", "../orders-1f2e", "orders-../x"])
def test_a_record_that_gives_the_job_of_another_name_up_is_refused(tmp_path, job):
    """Whatever is given up is deleted as soon as the job of the name has a checkpoint."""
    name = name_in(FileStore(tmp_path), "orders")
    assert name.give(job_of("orders", "1f2e"), after=0, gives_up=(JobId(job),))
    with pytest.raises(CorruptFile, match=r"has had the name 'orders', which does not fit the job's id"):
        name.holder()
