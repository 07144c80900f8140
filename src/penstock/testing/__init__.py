"""Test a program without Spark: in milliseconds, with crashes, the same way every time.

`run` takes the function that builds a program, and runs the program in a simulated cluster. Operators, checkpoints and
commits are real; processes, network, storage and clock are simulated. `seed` decides everything that chance decides on
a real cluster.

    import penstock as ps
    from penstock.testing import collect, crash, pause, run, scripted

    def word_counts(env, lines, results):                     # `env` is an Environment on Spark, a Program here
        words = env.read(lines).watermark("at", delay="1s")
        words.key_by("word").window(ps.tumbling("10s")).aggregate(n=ps.count()).write(results)

    def test_every_word_is_counted_once_whatever_dies():
        lines = scripted(
            [
                {"word": "to", "at": 1_000_000},
                {"word": "be", "at": 2_000_000},
                crash(),                                      # the process that reads this line dies here, once
                {"word": "to", "at": 3_000_000},
                pause(100),                                   # nothing comes for 100 ms
                {"word": "be", "at": 12_000_000},
            ],
            schema="word string, at timestamp",
        )
        for seed in range(5):
            rows = run(lambda env: word_counts(env, lines, collect()), seed=seed, crashes=2)
            assert sorted((row["word"], row["window_start"].second, row["n"]) for row in rows) == [
                ("be", 0, 1), ("be", 10, 1), ("to", 0, 2),
            ]

The seed also decides how records are cut into batches and which of two processes is faster. So the order of the results
differs from seed to seed. The results themselves are the same for every seed, unless records are late. `scripted`
sources are for this module only; `collect` is `penstock.collect`. Other sources and sinks can be used in a run too, and
are called for real.

`KafkaBroker` is a real Kafka broker of this machine, for tests of programs that read or write Kafka. The broker needs
Maven, Java and the extra `kafka`.
"""

from __future__ import annotations

from penstock.bench.kafka_broker import KafkaBroker
from penstock.connectors.collect_sink import CollectSink as Collected
from penstock.connectors.collect_sink import collect
from penstock.testing.runs import run
from penstock.testing.scripts import Mark, Scripted, crash, pause, scripted

__all__ = ["Collected", "KafkaBroker", "Mark", "Scripted", "collect", "crash", "pause", "run", "scripted"]
