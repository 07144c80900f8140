"""Files with a seal: without the key nobody can change a sealed file, or make a file that passes for a sealed file.

    …          the content
    32 bytes   BLAKE2b of the content, with the key
    8 bytes    PNSTSEAL

A checksum shows damage. A checksum does not show a change on purpose: an attacker can compute the checksum as well. A
store that has a key seals every file that it writes, and refuses to read a file without a seal of that key: metadata,
state, data in flight, records. A store without a key reads sealed files, too, and does not look at the seal.

A seal does not show that a file was replaced by an older version, or by another file that was sealed with the same key.
Metadata names the files of a snapshot with their checksums, and has a seal itself; but older metadata cannot be told
from newer metadata.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Iterator
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
    """How a job's files are written and read. The options travel to the slots of the job."""

    seal: bytes | None = field(default=None, repr=False)
    """The key of the seals; None: files are not sealed."""
    readable_by: Readers = "owner"
    """Which users may read the files, where the file system knows users."""

    @property
    def file_mode(self) -> int:
        """The mode of a file."""
        return {"owner": 0o600, "group": 0o640, "all": 0o644}[self.readable_by]

    @property
    def folder_mode(self) -> int:
        """The mode of a folder."""
        return {"owner": 0o700, "group": 0o750, "all": 0o755}[self.readable_by]

    def seal_of(self, data: Frame) -> bytes:
        """The bytes to write behind the content of a file; empty without a key."""
        return b"" if self.seal is None else _digest(self.seal, memoryview(data)) + _MARK

    def opened(self, content: bytes, where: str) -> bytes:
        """The content of a file, without the seal; `content` is the whole file. Raises `CorruptFile` if this store has
        a key and the file has no seal of the key."""
        is_sealed = _is_sealed(content)
        if self.seal is None:
            return content[:-SEAL_BYTES] if is_sealed else content
        data = memoryview(content)[:-SEAL_BYTES]
        self._check(_digest(self.seal, data) if is_sealed else None, content[-SEAL_BYTES:], where)
        return bytes(data)

    def opened_pieces(self, pieces: Iterable[bytes], where: str) -> Iterator[bytes]:
        """The same for a file that is read in pieces. The error comes after the last piece, because the seal is at the
        end of the file."""
        digest = None if self.seal is None else _keyed(self.seal)
        held = b""
        for piece in pieces:
            # What is held back is small, and is not put together with a large piece, which would copy the piece.
            parts = (held, piece[:-SEAL_BYTES]) if len(piece) >= SEAL_BYTES else ((held + piece)[:-SEAL_BYTES],)
            held = (held + piece[-SEAL_BYTES:])[-SEAL_BYTES:]
            for content in filter(None, parts):
                if digest is not None:
                    digest.update(content)
                yield content
        if digest is not None:
            self._check(digest.digest() if _is_sealed(held) else None, held, where)
        elif not _is_sealed(held):
            yield held

    def _check(self, digest: bytes | None, seal: bytes, where: str) -> None:
        hint = "do not use the file: it was written without the key that is given here, or was changed since"
        if digest is None:
            raise CorruptFile(f"{where} is not sealed", hint=hint)
        if not hmac.compare_digest(digest, seal[: -len(_MARK)]):
            raise CorruptFile(f"the seal of {where} does not fit its content", hint=hint)


PLAIN = StoreOptions()
"""No seals, and files for their owner alone."""


def _is_sealed(content: bytes) -> bool:
    return len(content) >= SEAL_BYTES and content[-len(_MARK) :] == _MARK


def _digest(key: bytes, data: memoryview) -> bytes:
    made = _keyed(key)
    made.update(data)
    return made.digest()


def _keyed(key: bytes) -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=_DIGEST_BYTES, key=hashlib.sha512(key).digest(), person=_PERSON)
