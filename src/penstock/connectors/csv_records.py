"""CSV records whose values may have line breaks: where records end, and how they become rows.

A value is quoted if its first character is a quotation mark; a quotation mark in such a value is written twice. Line
breaks in a quoted value belong to the value. Everywhere else a quotation mark is a character like any other. So where
records end is known only by reading from the beginning of a record, and a block always begins with a record.

A quotation mark that is never closed would swallow the rest of the file. The line of such a mark is a bad line by
itself, and the next record begins behind it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from penstock.connectors.file_formats import CsvLines, Unreadable

_QUOTED = rb'(?:\A|(?<=[\n%b]))"[^"]*(?:""[^"]*)*("?)'
"""A quoted value, from its first quotation mark to its last quotation mark, or to the end if there is no last mark."""


@dataclass(frozen=True)
class CsvRecords(CsvLines):
    """Values between delimiters. Quoted values may have line breaks."""

    @cached_property
    def _quoted(self) -> re.Pattern[bytes]:
        return re.compile(_QUOTED % re.escape(self.delimiter.encode()))

    def decode(self, lines: bytes) -> pa.RecordBatch:
        """A row for each record that is not empty."""
        spans = self._spread(lines)
        if not spans:
            return self._decode(lines, has_breaks=False)
        if spans[-1][2]:
            raise Unreadable("a quotation mark is not closed")
        return self._decode(lines, has_breaks=True, count=sum(1 for each in self.pieces(lines) if each.strip(b"\r\n")))

    def pieces(self, lines: bytes) -> list[bytes]:
        """The records, each with its line break."""
        ends = [*self._ends(lines)]
        if not ends or ends[-1] < len(lines):
            ends.append(len(lines))
        return [lines[first:end] for first, end in zip([0, *ends], ends, strict=False) if first < end]

    def cut(self, block: bytes, at_least: int) -> int:
        """The end of the last record that ends within `at_least` bytes, or of the first record; 0 if no record ends."""
        if b'"' not in block:
            return super().cut(block, at_least)
        return max(self._ends(block[:at_least]), default=0) or next(self._ends(block), 0)

    def cut_at_end(self, block: bytes) -> int:
        """The whole block; or, if a quotation mark is not closed, the records before it, or its line."""
        spans = self._spread(block)
        if not spans or not spans[-1][2]:
            return len(block)
        return max(self._ends(block), default=0) or block.find(b"\n") + 1 or len(block)

    def _ends(self, block: bytes) -> Iterator[int]:
        """Behind each record that ends in the block."""
        position = 0
        for first, last, is_open in self._spread(block):
            while (found := block.find(b"\n", position, first)) >= 0:
                yield found + 1
                position = found + 1
            if is_open:
                return
            position = last
        while (found := block.find(b"\n", position)) >= 0:
            yield found + 1
            position = found + 1

    def _spread(self, block: bytes) -> list[tuple[int, int, bool]]:
        """The quoted values that have a line break or no last quotation mark: where they begin and end, and whether
        they have no last mark."""
        if b'"' not in block:
            return []
        found = ((*each.span(), not each.group(1)) for each in self._quoted.finditer(block))
        return [(first, last, is_open) for first, last, is_open in found if is_open or b"\n" in block[first:last]]
