"""The rules that a simulated job is held to, and how a violation of a rule is reported."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Rule(Enum):
    """What must hold in every world. The value is what people read."""

    EXACTLY_ONCE = "every input record shows in the output exactly once"
    AT_LEAST_ONCE = "with at-least-once no input record is missing in the output, and no row is made up"
    STOPPED = "a stopped job has shown the results of all records before its savepoint, and has closed no window early"
    KEY_ORDER = "records of one key keep their order"
    CHECKPOINT_IDS = "checkpoint ids grow, and checkpoints complete in their order"
    SPLITS = "a split has one reader in an attempt, and one place in a checkpoint"
    COMMITS = "the driver commits the results of each barrier once and in order; after a failure the same results again"
    EARLY_COMMIT = "no result is committed, and no checkpoint is announced, before the checkpoint is durable"
    NEWEST = "an attempt begins from the newest checkpoint that was announced, or from a newer checkpoint"
    FENCING = "an earlier attempt changes nothing that a later attempt has taken over"
    HOOKS = "tasks begin only after the hook was put back to the checkpoint that the tasks begin from"
    REGIONS = "a region in which no task failed and no slot was lost goes on as it was"
    LINKS = "a slot takes a link for broken only if a fault has broken the link"
    RESTORABLE = "a recorded checkpoint has all its files"
    ANSWERED = "every request is answered once, and the answer is true"
    SAVEPOINTS = "a savepoint that was promised is whole and stays whole; a savepoint that failed leaves no file behind"
    DRIFT = "an aligned source reads no split that is too far ahead of the others"
    WAITS = "no row is handled before the broadcast stream has come to the point that the row waits for"
    STARTED_OVER = "when a program starts over, the files of the job before stay until the next job has a checkpoint"
    NO_ORPHANS = "no file is left that no retained checkpoint refers to"
    LIVENESS = "once no fault strikes any more, the job comes to its end"
    NO_STARVATION = "while no fault strikes, a checkpoint that is due begins soon, whatever the tasks do"
    NO_LIVELOCK = "an actor that asks for another turn makes progress"
    NO_BUG = "no driver raises, contradicts itself or logs an error"


@dataclass(frozen=True, kw_only=True)
class Violation:
    """A rule that did not hold."""

    rule: Rule
    at_ms: int
    """Virtual milliseconds since the world began."""
    text: str

    def __str__(self) -> str:
        return f"{self.rule.name}: {self.rule.value}, but at {self.at_ms} ms: {self.text}"
