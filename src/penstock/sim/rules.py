"""The rules that a simulated job is held to, and how a broken one is told."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Rule(Enum):
    """What must hold in every world. The value is what people read."""

    EXACTLY_ONCE = "every input record shows in the output exactly once"
    AT_LEAST_ONCE = "with at-least-once no input record is missing in the output, and nothing is made up"
    STOPPED = "a stopped job has shown what was read before its savepoint, and no window early"
    KEY_ORDER = "records of one key keep their order"
    CHECKPOINT_IDS = "checkpoint ids grow, and checkpoints complete in their order"
    SPLITS = "a split has one reader in an attempt, and one place in a checkpoint"
    COMMITS = "the driver commits what belongs to a barrier once and in order; after a failure the same again"
    EARLY_COMMIT = "nothing is committed or announced before its checkpoint is durable"
    NEWEST = "an attempt begins from the newest checkpoint that anybody was told of, or a newer one"
    FENCING = "an earlier attempt changes nothing that a later one has taken over"
    HOOKS = "tasks begin when the hook is where the checkpoint is that they begin from"
    REGIONS = "tasks that nothing joins to what failed go on as they were"
    LINKS = "no link between slots is taken for broken that nothing has broken"
    RESTORABLE = "a recorded checkpoint has all its files"
    ANSWERED = "every request is answered once, and what the answer says is true"
    SAVEPOINTS = "a savepoint that was promised is whole and stays so; one that failed leaves nothing behind"
    WAITS = "no row is handled before the broadcast stream is as far as the row has to wait for"
    STARTED_OVER = "what is left of a job goes when the job that took its name has a checkpoint, and not before"
    NO_ORPHANS = "no file is left that no retained checkpoint refers to"
    LIVENESS = "without faults the job comes to its end"
    NO_STARVATION = "in a job that nothing disturbs a checkpoint that is due begins soon, whatever the tasks do"
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
