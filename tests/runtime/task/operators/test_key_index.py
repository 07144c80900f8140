"""The index of keys against a dict, with hashes that are often equal."""

from __future__ import annotations

import random

import numpy as np
import pytest

from penstock.runtime.task.operators.key_index import ABSENT, KeyIndex


class Model:
    """An index of whole numbers, whose hashes are the numbers modulo `hashes`, beside a dict of the same."""

    def __init__(self, hashes):
        self.index = KeyIndex()
        self.places = {}
        self.keys = {}
        self.next_place = 0
        self.hashes = hashes

    def hashes_of(self, keys):
        return np.array([key % self.hashes * 0x9E3779B97F4A7C15 % 2**64 for key in keys], np.uint64)

    def find(self, keys):
        same = lambda rows, places: np.array(  # noqa: E731
            [keys[row] == self.keys.get(int(place)) for row, place in zip(rows, places, strict=True)], np.bool_
        )
        buckets = self.index.find(self.hashes_of(keys), same)
        known = buckets != ABSENT
        found = np.full(len(keys), -1)
        found[known] = self.index.places(buckets[known])
        assert found.tolist() == [self.places.get(key, -1) for key in keys]
        return buckets

    def insert(self, keys):
        keys = [key for key in dict.fromkeys(keys) if key not in self.places]
        self.find(keys)
        places = np.arange(self.next_place, self.next_place + len(keys))
        self.next_place += len(keys)
        self.index.insert(self.hashes_of(keys), places)
        for key, place in zip(keys, places.tolist(), strict=True):
            self.places[key], self.keys[place] = place, key

    def remove(self, keys):
        keys = [key for key in dict.fromkeys(keys) if key in self.places]
        self.index.remove(self.find(keys))
        for key in keys:
            del self.keys[self.places.pop(key)]

    def move(self, keys):
        keys = [key for key in dict.fromkeys(keys) if key in self.places]
        buckets = self.find(keys)
        places = np.arange(self.next_place, self.next_place + len(keys))
        self.next_place += len(keys)
        self.index.set_places(buckets, places)
        for key, place in zip(keys, places.tolist(), strict=True):
            del self.keys[self.places[key]]
            self.places[key], self.keys[place] = place, key


@pytest.mark.parametrize("hashes", [3, 50, 10**9])
def test_the_index_is_a_dict_whatever_is_done_to_it(hashes):
    chance, model = random.Random(hashes), Model(hashes)
    for _ in range(150):
        keys = [chance.randrange(600 if hashes < 100 else 20_000) for _ in range(chance.choice((0, 1, 20, 200)))]
        chance.choice((model.insert, model.insert, model.find, model.remove, model.move))(keys)
        assert len(model.index) == len(model.places)
    model.find(list(range(600)))


def test_entries_move_over_a_few_at_a_time_while_the_index_grows(monkeypatch):
    monkeypatch.setattr("penstock.runtime.task.operators.key_index._MOVED", 16)
    chance, model = random.Random(1), Model(10**9)
    grew = 0
    for _ in range(400):
        model.insert([chance.randrange(10**6) for _ in range(30)])
        grew += model.index._old is not None
        model.remove([chance.choice(list(model.places)) for _ in range(3)])
    assert grew > 50
    model.find(list(model.places))


def test_keys_that_come_and_go_do_not_make_the_index_grow():
    model = Model(10**9)
    for first in range(0, 60_000, 100):
        keys = list(range(first, first + 100))
        model.insert(keys)
        model.remove(keys)
    assert len(model.index._entries) <= 4_096
