"""Jobs that are rescaled again and again while their processes die: what is committed stays what it should be."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

import penstock as ps
from penstock.testing import collect, pause, run, runs, scripted

SECOND_US = 1_000_000
WORDS = ("to", "be", "or", "not", "that", "is", "the", "question", "whether", "nobler", "mind", "suffer")
ROWS = 120


def script(number: int) -> list[dict]:
    """A word a second, in another order in each script."""
    return [{"word": WORDS[(i * (number + 1)) % len(WORDS)], "at": i * SECOND_US} for i in range(ROWS)]


def with_pauses(rows: list[dict]) -> list:
    """Time passes now and then, so that more can happen."""
    return [item for i, row in enumerate(rows) for item in ((pause(40), row) if i % 20 == 19 else (row,))]


def word_counts(env, source, results) -> None:
    # A subtask reads several scripts, and after a rescale others, which are not where its own are: nothing may be late
    # for that.
    words = env.read(source).watermark("at")
    words.key_by("word").window(ps.tumbling("5s")).aggregate(n=ps.count()).write(results)


def expected() -> Counter:
    rows = [row for number in range(5) for row in script(number)]
    return Counter((row["word"], row["at"] // SECOND_US // 5 * 5) for row in rows)


@pytest.fixture
def rescaled(monkeypatch):
    """Has every run be rescaled at random times, with barriers that overtake in channels that are soon full; returns
    what was answered."""
    answers: list[tuple[int, str | None]] = []
    settings, begin = runs._settings, runs._Cluster.run

    def overtaking(world, parallelism, interval_ms):
        made = settings(world, parallelism, interval_ms)
        tight = replace(made.network, channel_bytes=500, output_bytes=500, batch_bytes=200)
        unaligned = replace(made.checkpoint, unaligned=world.random.random() < 0.8)
        return replace(made, network=tight, checkpoint=unaligned)

    def run_rescaled(cluster):
        world = cluster._world

        def ask() -> None:
            if cluster._master.outcome is None:
                wanted = world.random.randint(1, 5)
                cluster._master.rescale(wanted, lambda text: answers.append((wanted, text)))
                cluster._master_actor.wake()
                world.after(world.between(10_000, 150_000), ask)

        world.after(world.between(10_000, 100_000), ask)
        begin(cluster)

    monkeypatch.setattr(runs, "_settings", overtaking)
    monkeypatch.setattr(runs._Cluster, "run", run_rescaled)
    return answers


@pytest.mark.parametrize("crashes", [0, 3])
def test_nothing_is_lost_or_repeated_however_often_the_parallelism_changes(rescaled, crashes):
    done = 0
    for seed in range(15):
        rescaled.clear()
        source = scripted(*(with_pauses(script(number)) for number in range(5)), schema="word string, at timestamp")
        rows = run(
            lambda env, source=source: word_counts(env, source, collect()),
            parallelism=2,
            seed=seed,
            crashes=crashes,
            checkpoint_interval="30ms",
        )
        counts = Counter({(row["word"], row["window_start"].timestamp()): row["n"] for row in rows})
        assert len(rows) == len(counts), f"seed {seed} repeats windows"
        assert counts == expected(), f"seed {seed}"
        done += sum(text is None for _, text in rescaled)
    assert done > 30
