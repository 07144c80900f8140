"""A plan is made ready by asking its sources and sinks, of whatever kind, to prepare themselves."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pyarrow as pa
import pytest

import penstock.testing as kit
from penstock.api.connector import Footprint, Sink, Source
from penstock.api.program import Program
from penstock.api.steps import ReadStep, WriteStep
from penstock.core.errors import UsageError
from penstock.core.ids import JobId, Term
from penstock.settings import JobSettings
from penstock.spark.preparing import (
    Preparation,
    finds_more_later,
    folders_written,
    landed_steps,
    needs_landing,
    start_of,
)

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
