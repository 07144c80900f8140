"""Whole jobs with state in RocksDB, in a simulated cluster whose processes die."""

from __future__ import annotations

from collections import defaultdict
from datetime import timedelta

import pytest
from state_rig import LOCAL_DIRECTORY, SMALL

import penstock as ps
from penstock.runtime.task.operators import keyed
from penstock.settings import StateSettings
from penstock.state.rocksdb.backend import RocksBackend
from penstock.testing import collect, run, scripted

USERS = 7
ROWS = 140


class Visits(ps.KeyedFunction):
    """Counts in every way there is, and tells of each user ten seconds of event time after the last visit."""

    seen = ps.value_state("seen", "bigint", default=0)
    pages = ps.map_state("pages", key="string", value="bigint")
    times = ps.list_state("times", "timestamp")
    ends = ps.value_state("ends", "timestamp")

    def on_row(self, row, context):
        self.seen.set(self.seen.get() + 1)
        self.pages[row["page"]] = self.pages.get(row["page"], 0) + 1
        self.times.add(row["ts"])
        if (ends := self.ends.get()) is not None:
            context.timers.delete_event_time(ends)
        self.ends.set(row["ts"] + timedelta(seconds=1_000))
        context.timers.at_event_time(self.ends.get())

    def on_timer(self, timer, context):
        assert timer.time == self.ends.get()
        return {
            "user": context.key,
            "seen": self.seen.get(),
            "pages": dict(self.pages.items()),
            "times": [time.timestamp() for time in self.times.get()],
        }


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_every_row_changes_state_once_whatever_dies(monkeypatch, seed, parallelism):
    settings = StateSettings(backend="rocksdb", local_directory=LOCAL_DIRECTORY)
    used = []

    def make_backend(context):
        assert context.settings.backend == "memory"
        used.append(context.subtask)
        changed = type(context)(**{**vars(context), "settings": settings})
        return RocksBackend(changed, SMALL if seed % 2 else None)

    monkeypatch.setattr(keyed, "make_backend", make_backend)
    visits = [{"user": n % USERS, "page": f"p{n % 3}", "ts": n * 1_000_000} for n in range(ROWS)]
    source = scripted(visits, schema="user bigint, page string, ts timestamp")
    schema = "user bigint, seen bigint, pages map<string, bigint>, times array<double>"

    def build(env):
        env.read(source).watermark("ts").key_by("user").process(Visits(), schema=schema).write(collect())

    found = {row["user"]: row for row in run(build, seed=seed, parallelism=parallelism, crashes=2)}
    assert len(used) > parallelism
    wanted = defaultdict(lambda: {"seen": 0, "pages": defaultdict(int), "times": []})
    for row in visits:
        user = wanted[row["user"]]
        user["seen"] += 1
        user["pages"][row["page"]] += 1
        user["times"].append(row["ts"] / 1e6)
    assert len(found) == USERS
    for user, row in found.items():
        assert row["seen"] == wanted[user]["seen"]
        assert dict(row["pages"]) == wanted[user]["pages"]
        assert row["times"] == wanted[user]["times"]
