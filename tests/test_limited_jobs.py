"""What `limit` hands on, although only a part of the job is restarted."""

from __future__ import annotations

import pyarrow.parquet as pq

import penstock as ps
from penstock.testing import crash, pause, run, scripted


def test_the_first_records_are_handed_on_although_only_their_region_is_restarted(tmp_path):
    """1. A slot dies. 2. The other slot lives on, and reads its records again. 3. The count of the subtask in that slot
    begins anew."""
    first = [{"n": 1}, pause(100), crash(), {"n": 2}, pause(200), {"n": 3}]
    second = [{"n": 3}, pause(600), {"n": 4}]

    def program(env):
        apart = env.read(scripted(first, second, schema="n bigint"), name="a")
        apart.write(ps.parquet(str(tmp_path / "a")))
        rows = [*({"n": n} for n in range(4)), pause(500), {"n": 9}]
        limited = env.read(scripted([pause(500)], rows, schema="n bigint"), name="b").limit(4)
        limited.write(ps.parquet(str(tmp_path / "b")))

    run(program, parallelism=2, checkpoint_interval="3s")
    assert sorted(pq.read_table(tmp_path / "b").column("n").to_pylist()) == [0, 1, 2, 3]
