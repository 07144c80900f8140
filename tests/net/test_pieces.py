"""Frames of any size go over connections that refuse large ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.net import pieces
from penstock.net.pieces import PIECE_BYTES, in_pieces, whole

MARK = b"\0pieces\0"


@given(st.lists(st.binary(max_size=30) | st.binary(max_size=30).map(lambda b: MARK + b), min_size=1, max_size=4))
def test_a_message_is_whole_again(frames):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "PIECE_BYTES", 20)
        sent = [bytes(piece) for piece in in_pieces(frames)]
        assert all(len(piece) <= 20 for piece in sent[1:])
        assert [bytes(frame) for frame in whole(sent)] == frames


def test_small_messages_go_over_as_they_are():
    frames = [b"header", memoryview(b"x" * PIECE_BYTES)]
    assert in_pieces(frames) is frames
    assert whole(frames) is frames


@pytest.mark.parametrize(
    "frames",
    [
        [MARK + b"cut"],
        [MARK + (8).to_bytes(8, "little"), b"four"],
        [MARK + (4).to_bytes(8, "little"), b"four", b"more"],
        [MARK + (2).to_bytes(8, "little"), b"four"],
    ],
    ids=["no lengths", "too little", "too much", "across a border"],
)
def test_what_only_seems_to_be_in_pieces_is_left_as_it_came(frames):
    assert whole(frames) == frames


def test_large_frames_of_any_kind_arrive(open_transport, arrived):
    a, b = open_transport("a"), open_transport("b", host="127.0.0.1")
    a.connect("b", b.tcp_address)
    large = bytes(range(256)) * 20_000
    sent = [[b"head", large], [memoryview(large), b"", b"tail"], [MARK + b"no"], [b"small"]]
    for frames in sent:
        a.send("b", frames)
    assert [[bytes(frame) for frame in frames] for _, frames in arrived(b, 4)] == [
        [bytes(frame) for frame in frames] for frames in sent
    ]
    b.send("a", [large])
    [(_, [answer])] = arrived(a, 1)
    assert bytes(answer) == large
