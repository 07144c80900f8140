from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import UsageError
from penstock.core.ids import CheckpointId, JobId, OperatorId, TaskId, Term, VertexId
from penstock.core.recovery import layout

JOB = layout.job_folder(JobId("hot-auctions"))
N = CheckpointId


def test_every_kind_of_file_has_its_place() -> None:
    assert JOB == "hot-auctions"
    assert layout.checkpoint_folder(JOB, N(7)) == "hot-auctions/chk-7"
    assert layout.metadata_file(JOB, N(7)) == "hot-auctions/chk-7/_metadata"
    assert layout.shared_folder(JOB) == "hot-auctions/shared"
    assert layout.completed_file(JOB, N(7)) == "hot-auctions/completed/0000000000000000007"
    counters = layout.counter_folder(JOB), layout.drivers_folder(JOB)
    assert layout.counted_file(counters[0], 8) == "hot-auctions/counter/0000000000000000008"
    assert layout.counted_file(counters[1], 2) == "hot-auctions/drivers/0000000000000000002"
    assert layout.outcome_file(JOB, Term(2)) == "hot-auctions/outcome/0000000000000000002"
    assert layout.termless_outcome_file(JOB) == "hot-auctions/outcome/_outcome"
    assert layout.tenure_file(JOB, Term(2)) == "hot-auctions/tenures/0000000000000000002"
    assert layout.lease_file(JOB, Term(2)) == "hot-auctions/leases/0000000000000000002"
    assert layout.results_folder(JOB, OperatorId("to table")) == "results/hot-auctions/to%20table"
    assert layout.inputs_folder(JOB, OperatorId("read bids")) == "hot-auctions/inputs/read%20bids"
    assert layout.promised_folder(JOB) == "hot-auctions/promised"
    assert layout.snapshot_prefix(TaskId(VertexId("win/dow"), 3)) == "win%2Fdow-3"


def test_what_tells_later_drivers_that_a_job_has_ended_and_which_numbers_are_taken_outlives_it() -> None:
    folders = (
        layout.outcome_folder,
        layout.counter_folder,
        layout.drivers_folder,
        layout.tenures_folder,
        layout.leases_folder,
    )
    assert all(layout.outlives_the_job(JOB, folder(JOB)) for folder in folders)
    assert not layout.outlives_the_job(JOB, layout.completed_folder(JOB))
    assert not layout.outlives_the_job(JOB, layout.outcome_folder(layout.job_folder(JobId("other"))))


@given(st.integers(1, 2**63 - 1), st.integers(1, 2**63 - 1))
def test_names_of_pointers_sort_like_their_numbers(one: int, other: int) -> None:
    names = layout.completed_file(JOB, N(one)), layout.completed_file(JOB, N(other))
    assert (names[0] < names[1]) == (one < other)


@given(st.integers(0, 2**63 - 1))
def test_the_number_of_a_pointer_can_be_read_back(number: int) -> None:
    assert layout.number_of(layout.completed_folder(JOB), layout.completed_file(JOB, N(number))) == number
    assert (
        layout.number_of(layout.counter_folder(JOB), layout.counted_file(layout.counter_folder(JOB), number)) == number
    )


@pytest.mark.parametrize(
    "path",
    [
        "hot-auctions/completed/7",
        "hot-auctions/completed/000000000000000000x",
        "hot-auctions/completed/-000000000000000007",
        "hot-auctions/completed/" + "\u0667" * 19,
        "hot-auctions/completed/deeper/0000000000000000007",
        "hot-auctions/counter/0000000000000000007",
        "0000000000000000007",
    ],
)
def test_a_file_of_another_kind_has_no_number(path: str) -> None:
    assert layout.number_of("hot-auctions/completed", path) is None


@given(st.text(min_size=1))
def test_any_name_gives_one_visible_path_component(text: str) -> None:
    name = layout.component(text)
    assert name.isascii()
    assert not name.startswith(".")
    assert not set(name) & set("/\\\0 :*?\n")


@given(st.text(min_size=1), st.text(min_size=1))
def test_different_names_give_different_components(one: str, other: str) -> None:
    assert (layout.component(one) == layout.component(other)) == (one == other)


@pytest.mark.parametrize(("text", "name"), [("..", "%2E."), (".hidden", "%2Ehidden"), ("a.b", "a.b"), ("%2E", "%252E")])
def test_dots_and_percent_signs_cannot_be_misread(text: str, name: str) -> None:
    assert layout.component(text) == name


def test_an_empty_name_is_refused() -> None:
    with pytest.raises(UsageError, match="empty name"):
        layout.job_folder(JobId(""))


@pytest.mark.parametrize(
    ("name", "expected"),
    [("results", True), ("names", True), ("savepoints", True), ("savepoint-orders-7", True), ("orders", False)],
)
def test_folders_that_belong_to_no_single_job_are_known(name: str, expected: bool) -> None:
    assert layout.is_of_no_job(name) is expected
