"""Files with a seal: who does not have the key can neither change one nor make one that is taken for ours.

    …          the content
    32 bytes   BLAKE2b of the content, with the key
    8 bytes    PNSTSEAL

Checksums tell what was damaged. They do not tell what somebody has changed on purpose, who can compute them as well. A
store that has a key seals everything that it writes, and gives nothing out that has no seal of that key: metadata,
state, data in flight, records. A store without a key reads sealed files, too, and does not look at the seal.

What a seal does not tell: that a file was replaced by an older one, or by another one of the same key. What belongs
together is named, with its checksum, by metadata that has a seal itself; but older metadata is not told from newer.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from typing import Literal

from penstock.core.errors import CorruptFile
from penstock.ports import Frame

Readers = Literal["owner", "group", "all"]

_MARK = b"PNSTSEAL"
_DIGEST_BYTES = 32
SEAL_BYTES = _DIGEST_BYTES + len(_MARK)
"""How much longer a sealed file is than its content."""
_PERSON = b"penstock-file"


@dataclass(frozen=True, kw_only=True)
class StoreOptions:
    """How a job's files are written and read. Travels to its slots."""

    seal: bytes | None = field(default=None, repr=False)
    """The key of the seals; None: files are not sealed."""
    readable_by: Readers = "owner"
    """Who may read the files, where the file system knows users."""

    @property
    def file_mode(self) -> int:
        """The mode of a file."""
        return {"owner": 0o600, "group": 0o640, "all": 0o644}[self.readable_by]

    @property
    def folder_mode(self) -> int:
        """The mode of a folder."""
        return {"owner": 0o700, "group": 0o750, "all": 0o755}[self.readable_by]

    def seal_of(self, data: Frame) -> bytes:
        """What is to be written behind the content of a file; nothing without a key."""
        return b"" if self.seal is None else _digest(self.seal, memoryview(data)) + _MARK

    def opened(self, content: bytes, where: str) -> bytes:
        """The content of a file that was read as a whole. Raises `CorruptFile` if it has no seal of the key."""
        is_sealed = content[-len(_MARK) :] == _MARK and len(content) >= SEAL_BYTES
        if self.seal is None:
            return content[:-SEAL_BYTES] if is_sealed else content
        hint = "do not use it: somebody without the key has written it, or it was written with another key or none"
        if not is_sealed:
            raise CorruptFile(f"{where} is not sealed", hint=hint)
        view = memoryview(content)
        data, digest = view[:-SEAL_BYTES], view[-SEAL_BYTES : -len(_MARK)]
        if not hmac.compare_digest(_digest(self.seal, data), digest):
            raise CorruptFile(f"the seal of {where} does not fit its content", hint=hint)
        return bytes(data)


PLAIN = StoreOptions()
"""No seals, and files for their owner alone."""


def _digest(key: bytes, data: memoryview) -> bytes:
    made = hashlib.blake2b(digest_size=_DIGEST_BYTES, key=hashlib.sha512(key).digest(), person=_PERSON)
    made.update(data)
    return made.digest()
