"""A plan is made ready by asking its sources and sinks, of whatever kind, to prepare themselves."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pytest

import penstock.testing as kit
from penstock.api.connector import Footprint, Sink, Source
from penstock.api.program import Program
from penstock.api.steps import ReadStep, WriteStep
from penstock.core.errors import UsageError
from penstock.core.ids import JobId, OperatorId, Term
from penstock.settings import JobSettings
from penstock.spark.preparing import (
    Preparation,
    _SparkSite,
    finds_more_later,
    folders_written,
    landed_steps,
    needs_landing,
    start_of,
)
from penstock.storage.seals import StoreOptions

SCHEMA = pa.schema({"n": pa.int64()})


@dataclass(frozen=True)
class Wells(Source):
    """A source that no module of the package knows of."""

    place: str | None = None
    schema = SCHEMA
    finds_more_later = True

    def splits(self, parallelism):
        return [f"{self.place} {number}".encode() for number in range(parallelism)]

    def open(self, splits):
        raise AssertionError

    def prepared(self, site):
        known = site.known_place or f"{site.landing}/{site.inputs()}"
        return replace(self, place=f"{known} {'begins' if site.begins else 'goes on'}")

    @property
    def footprint(self):
        return Footprint(place=self.place, in_landing=True)


@dataclass
class Basin(Sink):
    started: list = field(default_factory=list)
    on_driver: bool = False

    def writer(self, context):
        raise AssertionError

    def start(self, job):
        self.started.append(job)

    def prepared(self, site, schema):
        assert schema == SCHEMA
        return replace(self, started=[*self.started, site.results()])

    @property
    def commits_on_driver(self):
        return self.on_driver

    @property
    def footprint(self):
        return Footprint(shares_landing=True, written="basin")


def plan_of(*, on_driver=False):
    program = Program(JobSettings(parallelism=2))
    program.read(Wells(), name="wells").write(Basin(on_driver=on_driver), name="basin")
    return program.plan()


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Preparing makes folders: each test has a folder of its own to make them in."""
    monkeypatch.chdir(tmp_path)


def prepared(plan, **given):
    made = Preparation(job=JobId("job"), spark=None, landing="landing", **given).prepare(plan)
    steps = [operator.step for vertex in made.vertices for operator in vertex.operators]
    read = next(step for step in steps if isinstance(step, ReadStep))
    write = next(step for step in steps if isinstance(step, WriteStep))
    return made, read, write


def test_sources_and_sinks_prepare_themselves():
    _, read, write = prepared(plan_of())
    assert read.source.place.startswith("landing/")
    assert read.source.place.endswith(" begins")
    assert read.splits == tuple(f"{read.source.place} {number}".encode() for number in range(2))
    assert write.sink.started[1:] == ["job"]


def test_a_source_that_goes_on_from_a_snapshot_is_not_asked_for_splits():
    _, read, _ = prepared(plan_of(), begin=())
    assert read.source.place.endswith(" goes on")
    assert read.splits == ()


def test_the_next_driver_finds_places_and_splits_on_record():
    first, read, _ = prepared(plan_of(), term=Term(1))
    _, again, _ = prepared(plan_of(), term=Term(2), began=start_of(first))
    assert again.source.place == f"{read.source.place} begins"
    assert again.splits == read.splits


def test_drivers_that_may_follow_each_other_have_folders_of_their_own():
    places = {prepared(plan_of(), term=Term(1))[1].source.place for _ in range(2)}
    assert len(places) == 2


@pytest.mark.parametrize(("on_driver", "started"), [(True, []), (False, ["job"])])
def test_of_a_job_that_has_ended_a_sink_that_the_driver_commits_is_not_started(on_driver, started):
    _, _, write = prepared(plan_of(on_driver=on_driver), begin=(), has_ended=True)
    assert write.sink.started[1:] == started


def test_what_is_left_outside_of_checkpoints_is_asked_of_sources_and_sinks():
    plan = plan_of()
    assert needs_landing(plan)
    assert finds_more_later(plan)
    assert landed_steps(plan) == ("wells",)
    assert [str(folder) for folder in folders_written(plan)] == ["basin"]


def test_what_needs_spark_says_so_where_there_is_none():
    records = kit.scripted([{"n": 1}], schema="n bigint")
    with pytest.raises(UsageError, match="for_each_checkpoint needs Spark"):
        kit.run(lambda env: env.read(records).for_each_checkpoint(print))


# --- who may enter the folders that landed rows and results lie in ----------------------------------------------------


@pytest.fixture
def usual_umask():
    """The umask with which a host lets every user enter what is made without a mode."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def modes(folder):
    return {stat.S_IMODE(found.stat().st_mode) for found in (folder, *folder.rglob("*")) if found.is_dir()}


@pytest.mark.usefixtures("usual_umask")
@pytest.mark.parametrize(("readers", "mode"), [("owner", 0o700), ("group", 0o750), ("all", 0o755)])
@pytest.mark.parametrize("term", [None, Term(1)])
def test_folders_for_inputs_and_results_are_made_for_the_readers_of_the_job_alone(tmp_path, readers, mode, term):
    _, read, write = prepared(plan_of(), term=term, options=StoreOptions(readable_by=readers))
    assert Path(read.source.place.removesuffix(" begins")).is_dir()
    assert Path("landing", write.sink.started[0]).is_dir()
    assert modes(tmp_path / "landing") == {mode}


@pytest.mark.usefixtures("usual_umask")
def test_a_place_on_record_that_is_gone_is_made_again_for_the_readers_of_the_job_alone(tmp_path):
    site = _SparkSite(Preparation(job=JobId("job"), spark=None, landing="landing", term=Term(2)), OperatorId("basin"))
    site.known_place = str(tmp_path / "earlier" / "results" / "job" / "basin" / "token")
    assert site.results() == site.known_place
    assert modes(tmp_path / "earlier") == {0o700}


def test_a_job_that_has_ended_makes_no_folders(tmp_path):
    prepared(plan_of(), begin=(), has_ended=True)
    assert list(tmp_path.iterdir()) == []


def wide(*folders):
    """Folders that every user can enter, as earlier versions made them."""
    for folder in folders:
        folder.mkdir(exist_ok=True)
        folder.chmod(0o755)


def folders_of_earlier_version(landing):
    job, results = landing / "job", landing / "results"
    wide(landing, job, job / "inputs", job / "inputs" / "read", results, results / "job")
    return job, results


def test_folders_that_an_earlier_version_made_for_all_users_are_narrowed(tmp_path):
    job, results = folders_of_earlier_version(tmp_path / "landing")
    prepared(plan_of())
    assert modes(results) == {0o700}
    assert stat.S_IMODE(job.stat().st_mode) == 0o700


def test_folders_of_an_earlier_version_are_narrowed_though_nothing_is_landed_again(tmp_path):
    job, results = folders_of_earlier_version(tmp_path / "landing")
    Preparation(job=JobId("job"), spark=None, landing="landing").prepare(replace(plan_of(), vertices=()))
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in (job, results / "job")} == {0o700}


def test_a_landing_folder_that_the_user_has_made_keeps_its_mode(tmp_path):
    wide(tmp_path / "landing")
    prepared(plan_of())
    assert stat.S_IMODE((tmp_path / "landing").stat().st_mode) == 0o755
    assert modes(tmp_path / "landing" / "job") == {0o700}


def test_a_folder_that_lets_readers_of_the_job_in_is_not_narrowed(tmp_path):
    job, _ = folders_of_earlier_version(tmp_path / "landing")
    prepared(plan_of(), options=StoreOptions(readable_by="all"))
    assert modes(job) == {0o755}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders away")
@pytest.mark.parametrize("name", ["landing", "landing/results", "landing/results/job", "landing/job/inputs"])
def test_a_folder_that_belongs_to_another_user_is_refused_and_left_as_it_is(tmp_path, name):
    folders_of_earlier_version(tmp_path / "landing")
    given = tmp_path / name
    os.chown(given, 12_345, 12_345)
    with pytest.raises(UsageError, match=f"{given} belongs to user 12345") as caught:
        prepared(plan_of())
    assert "Environment(landing=...)" in caught.value.hint
    assert stat.S_IMODE(given.stat().st_mode) == 0o755


def test_a_landing_folder_in_which_all_users_can_put_other_folders_is_refused(tmp_path):
    (tmp_path / "landing").mkdir()
    (tmp_path / "landing").chmod(0o777)
    with pytest.raises(UsageError, match=f"can be replaced by another user: folder {tmp_path}/landing has mode 0777"):
        prepared(plan_of())
