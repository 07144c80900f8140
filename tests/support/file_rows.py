"""Files for tests to read, and what a source reads from them."""

from __future__ import annotations

import threading

import cloudpickle

import penstock as ps
from penstock.api.connector import End, Pause

NUMBERS = "n bigint"


def put(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())


def lines_of(numbers):
    return "".join(f'{{"n": {n}}}\n' for n in numbers)


def drain(reader, max_rows=100, limit=None):
    rows, waiting = [], threading.Event()
    while limit is None or len(rows) < limit:
        polled = reader.poll(max_rows if limit is None else min(max_rows, limit - len(rows)), 0)
        if isinstance(polled, End):
            break
        if isinstance(polled, Pause):
            waiting.wait(0.001)
        else:
            rows += polled.to_pylist()
    return rows


def rows_in(source):
    source = cloudpickle.loads(cloudpickle.dumps(source))
    reader = source.open(source.splits(2))
    try:
        return drain(reader)
    finally:
        reader.close()


def numbers_in(source):
    return [row["n"] for row in rows_in(source)]


def json_files(path, **options):
    return ps.files(path, format="json", schema=NUMBERS, **options)
