"""The simulated transport and store pass the very suites that the real ones do."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from penstock.ports import Frame
from penstock.sim.disk import Disk, SimStore
from penstock.sim.network import Network, SimTransport
from penstock.sim.world import Actor, World

CONTRACTS = Path(__file__).parents[1] / "contracts"


def suite(name: str) -> dict[str, object]:
    """The tests of one contract, to be run with the fixtures of this file."""
    spec = importlib.util.spec_from_file_location(f"sim_{name}", CONTRACTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    tests = {test: value for test, value in vars(module).items() if test.startswith("test_")}
    assert tests, f"{name} has no tests"
    return tests


globals().update(suite("test_transport_contract") | suite("test_store_contract"))


class SimHarness:
    """Named processes on a simulated network."""

    def __init__(self, seed: int) -> None:
        self._world = World(seed)
        self._network = Network(self._world, latency_us=(10, 5_000), spike_share=0.05)
        self._members: dict[str, SimTransport] = {}

    def join(self, name: str) -> SimTransport:
        self._members[name] = self._network.transport(Actor(self._world, name))
        return self._members[name]

    def leave(self, name: str) -> None:
        del self._members[name]
        self._network.died(name)

    def address(self, name: str) -> str:
        address = self._members[name].ipc_address
        assert address is not None
        return address

    def arrived(self, name: str, count: int) -> list[tuple[str, list[Frame]]]:
        messages: list[tuple[str, list[Frame]]] = []

        def enough() -> bool:
            messages.extend(self._members[name].receive())
            return len(messages) >= count

        assert self._world.run(enough, until_us=self._world.now_us + 10**9)
        return messages


@pytest.fixture(params=[1, 2, 3])
def network(request: pytest.FixtureRequest) -> SimHarness:
    return SimHarness(request.param)


@pytest.fixture
def store() -> SimStore:
    world = World(1)
    return Disk(world).store(Actor(world, "a"))


@pytest.fixture
def creating_store(store: SimStore) -> SimStore:
    return store
