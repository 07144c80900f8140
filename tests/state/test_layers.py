"""Layered containers: frozen in constant time, and the same as plain dicts whatever is frozen, thawed and folded."""

from __future__ import annotations

import copy
import random

import pytest

from penstock.state.backend import MISSING
from penstock.state.layers import ListLayers, MapLayers, ValueLayers, frozen_lists, frozen_maps, frozen_values


class Walk:
    """Random changes of a container and of its model; freezes that are read later, as a snapshot's work would."""

    def __init__(self, seed):
        self.draw = random.Random(seed)
        self.layers = self.make()
        self.model = {}
        self.frozen = []

    def run(self, steps):
        for _ in range(steps):
            match self.draw.randrange(12):
                case 0:
                    self.frozen.append((self.layers.freeze(), copy.deepcopy(self.model)))
                case 1 if self.frozen:
                    self.check_frozen()
                    self.layers.thaw()
                case 2 | 3 if not self.frozen:
                    self.layers.fold(self.draw.randrange(1, 5))
                case _:
                    self.change(self.draw.randrange(6))
            if self.draw.random() < 0.2:
                self.check()
        self.check_frozen()
        self.layers.thaw()
        while self.layers.is_folding:
            self.layers.fold(2)
            self.check()
        assert self.layers.plain

    def check_frozen(self):
        for layers, model in self.frozen:
            assert self.read(layers) == model
        self.frozen = []


class ValueWalk(Walk):
    def make(self):
        return ValueLayers(mutable=True)

    def change(self, key):
        match self.draw.randrange(3):
            case 0:
                self.layers.remove(key)
                self.model.pop(key, None)
            case 1:
                found = self.layers.get(key)
                if found is not MISSING:
                    found.append(1)
                    self.model[key].append(1)
            case _:
                self.layers.put(key, [0])
                self.model[key] = [0]

    def check(self):
        for key in range(6):
            found = self.layers.get(key)
            assert (found if found is not MISSING else None) == self.model.get(key)

    def read(self, layers):
        return dict(frozen_values(layers))


class ListWalk(Walk):
    def make(self):
        return ListLayers(mutable=False)

    def change(self, key):
        match self.draw.randrange(5):
            case 0:
                self.layers.remove(key)
                self.model.pop(key, None)
            case 1:
                new = [self.draw.randrange(9) for _ in range(self.draw.randrange(3))]
                self.layers.put(key, list(new))
                self.model.pop(key, None)
                if new:
                    self.model[key] = new
            case _:
                self.layers.append(key, 7)
                self.model.setdefault(key, []).append(7)

    def check(self):
        for key in range(6):
            assert self.layers.get(key) == self.model.get(key, [])

    def read(self, layers):
        return dict(frozen_lists(layers))


class MapWalk(Walk):
    def make(self):
        return MapLayers(mutable=False)

    def change(self, key):
        inner = self.draw.randrange(4)
        match self.draw.randrange(6):
            case 0:
                self.layers.clear(key)
                self.model.pop(key, None)
            case 1 | 2:
                self.layers.remove(key, inner)
                self.model.get(key, {}).pop(inner, None)
                if not self.model.get(key, {}):
                    self.model.pop(key, None)
            case _:
                value = self.draw.randrange(9)
                self.layers.put(key, inner, value)
                self.model.setdefault(key, {})[inner] = value

    def check(self):
        for key in range(6):
            expected = self.model.get(key, {})
            assert dict(self.layers.items(key)) == expected
            for inner in range(4):
                found = self.layers.get(key, inner)
                assert (found if found is not MISSING else None) == expected.get(inner)

    def read(self, layers):
        return dict(frozen_maps(layers))


@pytest.mark.parametrize("walk", [ValueWalk, ListWalk, MapWalk])
@pytest.mark.parametrize("seed", range(10))
def test_what_is_frozen_stays_and_what_goes_on_is_right(walk, seed):
    walk(seed).run(400)


@pytest.mark.parametrize("make", [ValueLayers, ListLayers, MapLayers])
def test_a_freeze_without_a_change_before_it_adds_no_layer(make):
    layers = make(mutable=False)
    first = layers.freeze()
    for _ in range(5):
        assert layers.freeze() == first


def test_folding_is_cut_into_pieces_also_within_one_large_map():
    layers = MapLayers(mutable=False)
    layers.put("key", -1, -1)
    layers.freeze()
    for n in range(1_000):
        layers.put("key", n, n)
    layers.thaw()
    pieces = 0
    while layers.is_folding:
        assert layers.fold(100) <= 101
        pieces += 1
        assert layers.get("key", 999) == 999
        assert layers.get("key", -1) == -1
    assert pieces >= 10
