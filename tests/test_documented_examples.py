"""The examples in docstrings of what users call are run as they stand there."""

from __future__ import annotations

import doctest

import pytest

from penstock.api.alignment import alignment
from penstock.api.other_windows import count_window, global_window
from penstock.api.pane_windows import cumulative, sliding
from penstock.api.program import Program
from penstock.api.streams.data_stream import Stream
from penstock.api.streams.keyed_stream import KeyedStream
from penstock.api.streams.windowed_stream import WindowedStream
from penstock.api.windows import session, tumbling
from penstock.connectors.files import files
from penstock.connectors.generated import generate
from penstock.connectors.sockets import socket
from penstock.plan.picture import Explanation

EXAMPLES = {
    "from_iterable": Program.from_iterable,
    "files": files,
    "generate": generate,
    "socket": socket,
    "split": Stream.split,
    "side": Stream.side,
    "late": Stream.late,
    "process": KeyedStream.process,
    "Explanation": Explanation,
    "watermark": Stream.watermark,
    "filter": Stream.filter,
    "map_batches": Stream.map_batches,
    "explode": Stream.explode,
    "sample": Stream.sample,
    "limit": Stream.limit,
    "distinct": Stream.distinct,
    "global_": Stream.global_,
    "partition": Stream.partition,
    "with_parallelism": Stream.with_parallelism,
    "tumbling": tumbling,
    "sliding": sliding,
    "cumulative": cumulative,
    "session": session,
    "aggregate": WindowedStream.aggregate,
    "apply": WindowedStream.apply,
    "alignment": alignment,
    "final": Stream.final,
    "count_window": count_window,
    "global_window": global_window,
    "updates": Stream.updates,
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_of_a_docstring_works(name):
    (example,) = doctest.DocTestFinder(recurse=False).find(EXAMPLES[name], name, globs={name: EXAMPLES[name]})
    assert example.examples
    runner = doctest.DocTestRunner(verbose=False)
    told: list[str] = []
    runner.run(example, out=told.append)
    assert not runner.failures, "".join(told)
