"""The id that is made of the name of a job, for the names of the job's folder, records and socket.

The id of a name is the name itself if the name is plain: lower-case letters, digits, `_` and single `-` between them,
short, and not the name of a folder that all jobs share. Any other name is cut down to a plain name and followed by a
digest of the whole name, so that no two names have the same id.
"""

from __future__ import annotations

import hashlib
import re

from penstock.core.errors import UsageError
from penstock.core.recovery.layout import is_of_no_job

_LONGEST = 60
_DIGEST_CHARACTERS = 16
_PLAIN = re.compile(r"[a-z0-9_]+(-[a-z0-9_]+)*")
_LIKE_A_DIGEST = re.compile(rf"-[0-9a-f]{{{_DIGEST_CHARACTERS}}}$")
_EXAMPLE = 'for example env.start("hot-auctions")'


def job_slug(name: str) -> str:
    """The id of the name of a job. Different names have different ids."""
    if not isinstance(name, str):
        raise UsageError(f"the name of the job is {name!r}, which is no text", hint=_EXAMPLE)
    if not any(character.isalnum() for character in name):
        raise UsageError(f"job name {name!r} has no letter or digit", hint=_EXAMPLE)
    # A plain name that ends like a digest could be the id of another name.
    is_taken = _LIKE_A_DIGEST.search(name) or is_of_no_job(name)
    if len(name) <= _LONGEST and _PLAIN.fullmatch(name) and not is_taken:
        return name
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_CHARACTERS // 2).hexdigest()
    shown = re.sub(r"[^a-z0-9_]+", "-", name.lower())[: _LONGEST - _DIGEST_CHARACTERS - 1].strip("-")
    return f"{shown or 'job'}-{digest}"
