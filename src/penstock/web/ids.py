"""The ids of jobs, steps and slots as clients of Flink's interface expect them: 32 hexadecimal digits.

An id is derived from the id that Penstock uses itself. So it stays the same over restarts and over runs, and users may
store it.
"""

from __future__ import annotations

import re

import xxhash

_ID = re.compile(r"[0-9a-f]{32}")


def public_id(*parts: str) -> str:
    """The id of something that is named by these parts: the kind, and then what makes it unique."""
    return xxhash.xxh3_128_hexdigest("\0".join(parts).encode())


def job_id(job: str) -> str:
    """The id of a job."""
    return public_id("job", job)


def vertex_id(vertex: str) -> str:
    """The id of a vertex. Vertices of different jobs may have the same id."""
    return public_id("vertex", vertex)


def operator_id(operator: str) -> str:
    """The id of an operator."""
    return public_id("operator", operator)


def is_id(text: str) -> bool:
    """Whether the text has the form of an id."""
    return _ID.fullmatch(text) is not None
