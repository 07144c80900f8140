"""Checkpoint hooks and who calls them, without a job around them."""

from __future__ import annotations

from commits_rig import Later

from penstock.api.hold import Hold
from penstock.api.hooks import CheckpointHook
from penstock.core.coordinator.effects import TriggerHook
from penstock.core.errors import JobTakenOver
from penstock.core.ids import CheckpointId, Instant
from penstock.runtime.master.guard import Guard
from penstock.runtime.master.hook_calls import MasterHooks


def make_hooks(hooks, *, hold=None, background=lambda _: Later(), feed=print, fail=print, taken_over=print):
    return MasterHooks(
        hooks,
        timeout_ms=1_000,
        guard=Guard(hold, taken_over),
        background=background,
        feed=feed,
        fail=fail,
    )


def triggered(hook: str, checkpoint: int) -> TriggerHook:
    return TriggerHook(hook=hook, checkpoint=CheckpointId(checkpoint), timestamp=Instant(77))


class Noting(CheckpointHook):
    """Notes its calls in a story that it may share with others; `answer` is what it returns or raises."""

    def __init__(self, name: str, story: list) -> None:
        self._name = name
        self._story = story
        self.answer: object = None

    @property
    def name(self):
        return self._name

    def trigger(self, checkpoint, timestamp_ms):
        return self._note("trigger", checkpoint, timestamp_ms)

    def restore(self, checkpoint, state):
        self._note("restore", checkpoint, state)

    def reset(self):
        self._note("reset")

    def close(self):
        self._note("close")

    def _note(self, *call):
        self._story.append((self._name, *call))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class HooksRig:
    """Two hooks, `a` and `b`, with a background each, a story, and what came of it."""

    def __init__(self) -> None:
        self.story: list = []
        self.events: list = []
        self.failed: list = []
        self.lost = 0
        self.looks: list = []
        self.a, self.b = Noting("a", self.story), Noting("b", self.story)
        self.work: dict[str, Later] = {}
        self.hold = Hold(self._look)
        self.hooks = make_hooks(
            {"a": self.a, "b": self.b},
            hold=self.hold,
            background=self._background,
            feed=self.events.append,
            fail=self.failed.append,
            taken_over=self._lose,
        )
        self.hooks.turn(Instant(0))

    def _look(self) -> None:
        if self.looks and (error := self.looks.pop(0)) is not None:
            raise error

    def _background(self, name: str) -> Later:
        self.work[name.removeprefix("hook-")] = Later()
        return self.work[name.removeprefix("hook-")]

    def _lose(self) -> None:
        self.lost += 1

    def take_away(self) -> None:
        """Another driver has the job, from the next look on."""
        self.looks = [JobTakenOver("another driver has it")]

    def perform(self, *names: str) -> None:
        for name in names or ("a", "b"):
            self.work[name].perform()
