"""Streams of raw keyed state: what is frozen, what a restore takes in, and files that are refused."""

from __future__ import annotations

import pytest

import penstock as ps
from penstock.core.errors import CorruptFile
from penstock.core.ids import OperatorId
from penstock.core.messages import OperatorState, StateFile
from penstock.state.raw_keyed import MAGIC, RawFile, RawKeyedStates, encode


class Kept:
    """Holds files in memory."""

    def __init__(self) -> None:
        self.contents: list[bytes] = []

    def put(self, data):
        self.contents.append(bytes(data))
        return StateFile(path=str(len(self.contents) - 1), size=len(data), checksum=0)

    def get(self, file):
        return self.contents[int(file.path)]


def states(own, *names):
    declared = {name: ps.raw_keyed_state(name) for name in names or ("sketch",)}
    return RawKeyedStates(declared, operator="step", name="step", groups=128, own_groups=own)


def saved(states, store) -> OperatorState:
    return OperatorState(operator=OperatorId("step"), raw=states.snapshot()(store))


def content(states, name="sketch"):
    return dict(states.handles[name].items())


@pytest.mark.parametrize(
    "ranges", [[(0, 127)], [(0, 42), (43, 85), (86, 127)], [(0, 31), (32, 63), (64, 95), (96, 127)]]
)
def test_a_subtask_gets_the_streams_of_the_key_groups_that_it_owns_now(ranges):
    store = Kept()
    old = [states((0, 63)), states((64, 127))]
    for group in range(128):
        old[group // 64].handles["sketch"].set(group, b"%d" % group)
    parts = [saved(one, store) for one in old]
    for own in ranges:
        new = states(own)
        new.restore(parts, store)
        assert content(new) == {group: b"%d" % group for group in range(own[0], own[1] + 1)}


def test_a_snapshot_has_what_was_there_when_it_was_taken():
    store, one = Kept(), states((0, 127))
    given = bytearray(b"before")
    one.handles["sketch"].set(3, given)
    work = one.snapshot()
    given[:] = b"behind"
    one.handles["sketch"].set(4, b"later")
    one.handles["sketch"].clear()
    new = states((0, 127))
    new.restore([OperatorState(operator=OperatorId("step"), raw=work(store))], store)
    assert content(new) == {3: b"before"}


def test_no_streams_are_no_file():
    one = states((0, 127))
    one.handles["sketch"].set(3, b"x")
    one.handles["sketch"].set(3, b"")
    assert one.snapshot()(Kept()) == ()


def test_streams_of_a_state_that_is_no_longer_declared_are_kept():
    store, one = Kept(), states((0, 127), "old", "new")
    one.handles["old"].set(3, b"x")
    between = states((0, 127), "new")
    between.restore([saved(one, store)], store)
    last = states((0, 127), "old")
    last.restore([saved(between, store)], store)
    assert content(last, "old") == {3: b"x"}


def test_files_that_cannot_be_are_refused():
    good = encode("step", 128, (0, 63), {"sketch": {3: b"abc", 7: b"d"}})
    assert good[:4] == MAGIC
    for cut in range(len(good)):
        with pytest.raises(CorruptFile):
            RawFile(good[:cut], what="it")
    with pytest.raises(CorruptFile, match="version 2"):
        RawFile(good[:5] + b"\x02" + good[6:], what="it")
    with pytest.raises(CorruptFile, match="instead of"):
        RawFile(good + b"x", what="it")
    with pytest.raises(CorruptFile, match="impossible stream of 'sketch' for key group 64"):
        RawFile(encode("step", 128, (0, 63), {"sketch": {64: b"abc"}}), what="it")


def test_a_key_group_in_two_files_is_refused():
    store, one = Kept(), states((0, 127))
    one.handles["sketch"].set(3, b"x")
    with pytest.raises(CorruptFile, match="has key group 3 of 'sketch', and so has another file"):
        states((0, 127)).restore([saved(one, store), saved(one, store)], store)
