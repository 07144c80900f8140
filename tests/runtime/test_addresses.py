"""The way from one slot to another: the shortest that leads there."""

from __future__ import annotations

import pytest

from penstock.core.errors import StreamError
from penstock.core.ids import SlotId, SlotIndex
from penstock.runtime.addresses import SlotAddress, peer_address

PEER = SlotId(SlotIndex(1), 1)
HERE = SlotAddress(host="host", pid=1, ipc_scope="one", ipc_address="ipc:///a", tcp_address="tcp://10.0.0.1:1")


def way(**changes):
    values = {
        "host": "host",
        "pid": 2,
        "ipc_scope": "one",
        "ipc_address": "ipc:///b",
        "tcp_address": "tcp://10.0.0.2:2",
    }
    return HERE.way_to(peer_address(SlotAddress(**(values | changes)).registration_of(PEER)))


def test_a_slot_that_sees_the_same_files_is_called_by_them():
    assert way() == "ipc:///b"
    assert way(host="its-container") == "ipc:///b"


def test_a_slot_that_does_not_is_called_by_tcp_whatever_its_host_is_called():
    assert way(ipc_scope="other") == "tcp://10.0.0.2:2"
    assert way(ipc_address=None) == "tcp://10.0.0.2:2"


def test_a_slot_that_cannot_be_called_is_told_with_both_hosts():
    with pytest.raises(StreamError, match=r"slot-1\.1\.0 on far has no address that a slot on host can reach"):
        way(host="far", ipc_scope="other", tcp_address=None)
