"""Requests that nobody should send: the server answers each of them, and never with an error of its own."""

from __future__ import annotations

import asyncio
import os

import pytest
import request_fuzz
import schemathesis
from hypothesis import HealthCheck, settings
from web_rig import Rig

import penstock as ps
from penstock.web.server import Server

REQUESTS = int(os.environ.get("PENSTOCK_REQUESTS", "2000"))
"""`tests/support/request_fuzz.py` sends as many as one likes."""

_RIG = Rig(hosts=["testserver"])
_SCHEMA = schemathesis.openapi.from_asgi("/openapi.json", _RIG.app).exclude(path="/penstock/stream")


@pytest.fixture(scope="module", autouse=True)
def _close():
    yield
    _RIG.close()


@_SCHEMA.parametrize()
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_request_of_the_described_kind_is_an_error(case):
    response = case.call()
    assert response.status_code != 500, response.text
    # Methods that an address does not have are tried, too.
    described = [*case.operation.definition.raw["responses"], "204", "405"]
    assert str(response.status_code) in described, response.text


@pytest.mark.parametrize("seed", [1, 2])
def test_no_drawn_request_is_an_error(seed):
    rig = Rig()
    statuses, wrong = asyncio.run(request_fuzz.send_all(rig, REQUESTS // 2, seed))
    rig.close()
    assert wrong == []
    # The requests reach what they are meant to reach.
    assert {200, 202, 400, 404, 405} <= set(statuses)


def test_bytes_that_are_no_request_end_only_their_connection():
    server = Server(ps.Web(port=0))
    server.start()
    try:
        port = int(server.address.rpartition(":")[2])
        answers = request_fuzz.send_raw(port, 300, seed=3)
        assert server.is_running
        assert any("200" in line for line in answers)
        assert not any(" 500" in line for line in answers)
    finally:
        server.close()
