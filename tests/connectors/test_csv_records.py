"""CSV records with line breaks in quoted values: each is one row, from whatever position; errors name file and line."""

from __future__ import annotations

import csv
import io
import random
import re

import pyarrow as pa
import pytest

from penstock.api.connector import End
from penstock.connectors import file_reading
from penstock.connectors.files import files
from penstock.core.errors import UsageError
from penstock.core.ids import JobId
from penstock.plan.graph import Plan
from penstock.runtime.master.progress import JobProgress
from penstock.testing import collect, run

SCHEMA = "n bigint, text string, more string"
TEXTS = [
    "plain",
    "two\nlines",
    "a\n\n\nb",
    'he said "no\nno"',
    ",\n,",
    "\n",
    "",
    '"',
    'end"',
    "a,b",
    "ü\nä",
    "\r\nx",
    '5" pipe',
]


def source(folder, **options):
    return files(folder, format="csv", schema=SCHEMA, multi_line=True, **options)


def drain(reader, most=10**9, max_rows=7):
    found = []
    while len(found) < most:
        polled = reader.poll(max_rows, 0)
        if isinstance(polled, End):
            break
        if isinstance(polled, pa.RecordBatch):
            found += polled.to_pylist()
    return found


def written(folder, rows, name="a.csv", *, end="\n"):
    out = io.StringIO()
    writer = csv.writer(out, lineterminator=end)
    writer.writerow(["n", "text", "more"])
    writer.writerows(rows)
    (folder / name).write_bytes(out.getvalue().encode())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_every_record_comes_once_and_in_order_from_whatever_position(tmp_path, monkeypatch, seed, end):
    monkeypatch.setattr(file_reading, "BLOCK_BYTES", 64)
    chance = random.Random(seed)
    rows = [[n, chance.choice(TEXTS), chance.choice(TEXTS)] for n in range(120)]
    written(tmp_path, rows, end=end)
    made = source(tmp_path, null_values=["NULL"])
    reader, found = made.open(made.splits(1)), []
    for _ in range(6):
        found += drain(reader, chance.randrange(1, 30), chance.choice([1, 3, 50]))
        splits = reader.snapshot()
        reader.close()
        reader = made.open(splits)
    found += drain(reader)
    reader.close()
    assert [[row["n"], row["text"], row["more"]] for row in found] == rows


def test_without_the_option_the_error_names_it(tmp_path):
    written(tmp_path, [[1, "a", "b"], [2, "two\nlines", "c"]])
    plain = files(tmp_path, format="csv", schema=SCHEMA)
    with pytest.raises(UsageError, match=re.escape("a.csv, line 3 cannot be read")) as raised:
        drain(plain.open(plain.splits(1)))
    assert "multi_line=True" in str(raised.value)


BROKEN = 'n,text,more\n1,"x\ny",z\nno number,"a\n\nb",c\n2,d,e\n3,"never closed,f\n4,g,h\n'


def test_skipped_lines_are_counted_in_the_view_of_the_job():
    progress = JobProgress(JobId("job"), Plan(vertices=(), edges=(), parallelism=1, max_parallelism=1))
    progress.heard({"files[0]": {"rows_in": 5, "lines_skipped": 2}, "files[1]": {"rows_in": 5, "lines_skipped": 3}})
    assert progress.totals().lines_skipped == 5


def test_a_bad_record_is_named_by_its_first_line(tmp_path):
    (tmp_path / "a.csv").write_text(BROKEN)
    made = source(tmp_path)
    with pytest.raises(UsageError, match=r"a\.csv, line 4 cannot be read"):
        drain(made.open(made.splits(1)))


@pytest.mark.parametrize("block_bytes", [1, 16, 1_000])
def test_a_mark_that_is_not_closed_spoils_its_line_only(tmp_path, monkeypatch, block_bytes):
    monkeypatch.setattr(file_reading, "BLOCK_BYTES", block_bytes)
    (tmp_path / "a.csv").write_text(BROKEN)
    made = source(tmp_path, bad_rows="keep")
    found = drain(made.open(made.splits(1)))
    assert [row["n"] for row in found] == [1, None, 2, None, 4]
    assert [row["bad_row"] for row in found] == [None, 'no number,"a\n\nb",c', None, '3,"never closed,f', None]


def test_a_mark_that_is_not_closed_within_reach_spoils_its_line_only(tmp_path, monkeypatch):
    monkeypatch.setattr(file_reading, "BLOCK_BYTES", 64)
    monkeypatch.setattr(file_reading, "LONGEST_LINE_BYTES", 256)
    rows = "".join(f"{n},x,y\n" for n in range(10, 99))
    (tmp_path / "a.csv").write_text(f'n,text,more\n1,"open,y\n{rows}')
    made = source(tmp_path, bad_rows="skip")
    reader = made.open(made.splits(1))
    assert [row["n"] for row in drain(reader)] == list(range(10, 99))
    assert reader.metrics() == {"lines_skipped": 1}


def test_a_quotation_mark_within_a_value_is_a_letter(tmp_path):
    (tmp_path / "a.csv").write_text('n,text,more\n1,5" pipe,x\n2,a "b\n"c" d,y\n')
    made = source(tmp_path, bad_rows="keep")
    found = drain(made.open(made.splits(1)))
    assert [(row["n"], row["text"], row["bad_row"]) for row in found] == [
        (1, '5" pipe', None),
        (None, None, '2,a "b'),
        (None, None, '"c" d,y'),
    ]


def test_other_formats_refuse_the_option(tmp_path):
    (tmp_path / "a.json").write_text("{}\n")
    with pytest.raises(UsageError, match="multi_line are for CSV files"):
        files(tmp_path, format="json", schema="n bigint", multi_line=True)


def test_a_job_reads_such_files_though_processes_die(tmp_path):
    rows = [[n, TEXTS[n % len(TEXTS)], "x"] for n in range(50)]
    written(tmp_path, rows)
    found = run(lambda env: env.read(source(tmp_path, null_values=[])).write(collect()), crashes=2)
    assert sorted([row["n"], row["text"], row["more"]] for row in found) == rows
