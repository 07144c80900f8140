"""A source and a sink that a program can be written with; nothing here runs."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.api.connector import Sink, Source
from penstock.api.program import Program
from penstock.core.errors import UsageError
from penstock.settings import JobSettings
from penstock.sql.schemas import as_schema

BID_COLUMNS = "auction bigint, bidder bigint, price bigint, ts timestamp"


class NamedSource(Source):
    def __init__(self, name, schema):
        self._name = name
        self._schema = schema

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    @property
    def name(self) -> str:
        return self._name

    def splits(self, parallelism):
        raise NotImplementedError

    def open(self, splits):
        raise NotImplementedError


class PickySink(Sink):
    """Refuses records that have a column `secret`."""

    @property
    def name(self) -> str:
        return "picky"

    def check(self, schema):
        if "secret" in schema.names:
            raise UsageError("secret cannot be written")

    def writer(self, context):
        raise NotImplementedError

    def commit(self, committables):
        raise NotImplementedError


@pytest.fixture
def program():
    return Program(JobSettings(parallelism=2))


@pytest.fixture
def make_source():
    def make(name="bids", columns=BID_COLUMNS):
        return NamedSource(name, as_schema(columns, argument="columns"))

    return make


@pytest.fixture
def make_sink():
    return PickySink


@pytest.fixture
def bids(program, make_source):
    return program.read(make_source())
