"""The log of a world: the messages between its processes, and the log records of the drivers. A logged error is a
violation."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

import msgspec

from penstock.core.elements import Watermark
from penstock.core.messages import Heartbeat, OperatorEvent
from penstock.sim.network import Tap
from penstock.sim.rules import Rule
from penstock.sim.world import World
from penstock.wire.codec import decode_element, decode_to_master, decode_to_slot
from penstock.wire.frames import Kind, unpack


class _WorldHandler(logging.Handler):
    """Puts the log records of this package into a world's log."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.INFO)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        """Put a log record into the world's log. An error means lost, corrupt or unavailable data, and is a
        violation."""
        who = self._world.acting.name if self._world.acting is not None else "world"
        text = record.getMessage()
        if record.levelno >= logging.ERROR:
            self._world.violate(Rule.NO_BUG, f"{who} logged an error: {text}")
        else:
            self._world.note(who, f"{record.levelname.lower()}: {text}")


@contextmanager
def watch_logs(world: World) -> Iterator[None]:
    """While this context is open, the log records of this package go to the world, and nowhere else."""
    logger = logging.getLogger("penstock")
    handler = _WorldHandler(world)
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate


def watch_messages(world: World, *, master: str) -> Tap:
    """A tap that puts the messages between processes into the log, except heartbeats, watermarks, credits and data."""

    def tap(sender: str, receiver: str, frames: list[bytes]) -> None:
        for header, payload in unpack(frames):
            said: msgspec.Struct | None = None
            if header.kind is Kind.CONTROL:
                said = decode_to_slot(payload) if sender == master else decode_to_master(payload)
            elif header.kind is Kind.ELEMENT:
                said = decode_element(payload)
            if said is not None and not isinstance(said, Heartbeat | Watermark):
                channel = f" on edge {header.channel.edge}" if header.channel is not None else ""
                world.say(sender, f"-> {receiver}: {_in_short(said)}{channel}")

    return tap


_TOLD = ("epoch", "task", "checkpoint", "restored_checkpoint", "reason", "error")
"""The fields of a message that a reader of the log wants to see."""


def _in_short(said: msgspec.Struct) -> str:
    parts = [type(said).__name__]
    for name in _TOLD:
        value = getattr(said, name, None)
        if value is not None and value != "":
            text = value.name if isinstance(value, Enum) else str(value).splitlines()[0]
            parts.append(text if name == "task" else f"{name}={text}")
    if isinstance(said, OperatorEvent):
        event = msgspec.msgpack.decode(said.event)
        about = f"{len(event['splits'])} splits" if "splits" in event else event.get("checkpoint", "")
        parts.append(f"{event['type']} {about}".rstrip())
    return " ".join(parts)
