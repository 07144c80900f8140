"""Handlers of Python's logging that only keep records, for people who ask later."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Iterator


class KeepingHandler(logging.Handler):
    """Keeps records.

    In a program that sets up no logging, Python itself shows warnings, as long as no logger of the record has a
    handler. A handler that only keeps must not make the warnings of the program disappear: if all handlers of a record
    only keep, the first of them shows the record as Python would.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record."""
        last = logging.lastResort
        if last is not None and record.levelno >= last.level:
            handlers = list(_handlers_of(record))
            if all(isinstance(each, KeepingHandler) for each in handlers) and handlers[:1] == [self]:
                last.handle(record)
        self.keep(record)

    @abstractmethod
    def keep(self, record: logging.LogRecord) -> None:
        """Keep a record; called for every record."""


def _handlers_of(record: logging.LogRecord) -> Iterator[logging.Handler]:
    """The handlers that a record goes to, in order."""
    logger: logging.Logger | None = logging.getLogger(record.name)
    while logger is not None:
        yield from logger.handlers
        logger = logger.parent if logger.propagate else None
