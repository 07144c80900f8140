from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from penstock.net.keys import JobKeys, make_job_keys
from penstock.net.zeromq import ZmqTransport
from penstock.ports import Frame

WAIT_MS = 1_000
PATIENCE_S = 120

Open = Callable[..., ZmqTransport]
Arrived = Callable[[ZmqTransport, int], list[tuple[str, list[Frame]]]]


@pytest.fixture(scope="session")
def keys() -> JobKeys:
    return make_job_keys()


@pytest.fixture
def open_transport(keys: JobKeys) -> Iterator[Open]:
    """Makes transports that are closed after the test."""
    with ExitStack() as stack:

        def make(name: str, **options: Any) -> ZmqTransport:
            return stack.enter_context(ZmqTransport(name, **{"keys": keys, **options}))

        yield make


@pytest.fixture
def arrived() -> Arrived:
    """Waits for the next messages, that many or more."""

    def wait_for(transport: ZmqTransport, count: int) -> list[tuple[str, list[Frame]]]:
        messages = transport.receive()
        deadline = time.monotonic() + PATIENCE_S
        while len(messages) < count:
            # Ends for much that is no message, such as a stranger who calls again and again.
            transport.wait(WAIT_MS)
            messages += transport.receive()
            late = time.monotonic() >= deadline
            assert not late, f"{len(messages)} of {count} messages arrived at {transport.name}"
        return messages

    return wait_for
