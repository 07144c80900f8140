"""Commands of scripts, and the job that they are about: a master, tasks, queues between them, and storage.

Nothing moves by itself. A message lies in the queue of its sender and receiver, and storage work waits, until the
script says otherwise. A channel is a single queue: the batches that wait to be sent and the batches on their way are
not told apart. There is no clock and no chance: the same script always gives the same text.
"""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from script_master import ScriptMaster
from script_task import ScriptTask
from script_words import DataTaken, RestoreTask, TaskDropped, TaskRestored, words_of

from penstock.core.coordinator.events import CheckpointRequested, RequestKind
from penstock.core.elements import CancelMarker, EndOfData, EndOfPartition
from penstock.core.graph import CheckpointEdge, CheckpointGraph, CheckpointVertex
from penstock.core.ids import CheckpointId, Instant, JobId, OperatorId, RequestId, TaskId, VertexId
from penstock.core.messages import CancelTasks, Decline, Run, TriggerCheckpoint
from penstock.core.reasons import CheckpointFailure
from penstock.core.task.output import OutputQueue
from penstock.settings import CheckpointSettings, Mode, Retention

MODES: dict[str, dict[str, Any]] = {
    "aligned": {},
    "unaligned": {"unaligned": True},
    "timeout": {"unaligned": True, "aligned_timeout_ms": 100},
    "at-least-once": {"mode": Mode.AT_LEAST_ONCE},
}
NUMBERS = {
    "interval": "interval_ms",
    "expire": "timeout_ms",
    "pause": "min_pause_ms",
    "concurrent": "max_concurrent",
    "tolerate": "tolerable_failures",
}
Ends = tuple[str, str]
"""The sender and the receiver of a queue."""


class Work(NamedTuple):
    """Storage work that waits for the script."""

    done: Callable[[], None]
    failed: Callable[[str], None]
    is_ready: Callable[[], bool]


def graph_of(parallelisms: dict[str, int], *, is_forward: bool) -> CheckpointGraph:
    """Vertices in a row, of which the first is the source. Each task feeds every task of the next vertex, or only the
    task of the same number."""
    names = list(parallelisms)
    vertices = [
        CheckpointVertex(
            vertex=VertexId(name), parallelism=count, operators=(OperatorId(name),), is_source=name == names[0]
        )
        for name, count in parallelisms.items()
    ]
    edges = [
        CheckpointEdge(upstream=VertexId(up), downstream=VertexId(down), all_to_all=not is_forward)
        for up, down in itertools.pairwise(names)
    ]
    return CheckpointGraph(vertices=tuple(vertices), edges=tuple(edges))


class Script:
    """The interpreter. The first command of a script is `job`; every command returns what happened."""

    def __init__(self) -> None:
        self.now = Instant(0)
        self._lines: list[tuple[str, bool]] = []
        self._queues: dict[Ends, OutputQueue[Any]] = {}
        self._works: dict[str, Work] = {}
        self._held: list[str] = []
        self._tasks: dict[TaskId, ScriptTask] = {}
        self._requests = 0
        self._graph: CheckpointGraph
        self._settings: CheckpointSettings
        self._master: ScriptMaster

    def perform(self, command: str) -> list[str]:
        """Perform one command and return what happened, line by line. `quietly` leaves out all but what became of
        checkpoints, requests and attempts."""
        self._lines.clear()
        verb, _, words = command.removeprefix("quietly ").partition(" ")
        method: Callable[[str], None] | None = getattr(self, f"do_{verb}", None)
        if method is None:
            known = ", ".join(name.removeprefix("do_") for name in dir(self) if name.startswith("do_"))
            raise ValueError(f"scripts have no command {verb!r}; the commands are {known}")
        method(words)
        if verb != "job":
            self._master.turn()
        is_quiet = command.startswith("quietly ")
        return [line for line, is_loud in self._lines if is_loud or not is_quiet] or ["ok"]

    # --- commands ---------------------------------------------------------------------------

    def do_job(self, words: str) -> None:
        """job sources=N windows=N [sinks=N] [edges=forward] [mode=MODE] [restarts=N] [SETTING=N ...]: it runs."""
        given = dict(word.split("=") for word in words.split())
        is_forward = given.pop("edges", "all-to-all") == "forward"
        vertices = [name for name in ("source", "window", "sink") if f"{name}s" in given]
        self._graph = graph_of({name: int(given.pop(f"{name}s")) for name in vertices}, is_forward=is_forward)
        restarts = int(given.pop("restarts", "9"))
        mode = MODES[given.pop("mode", "aligned")]
        numbers: dict[str, Any] = {NUMBERS[name]: int(number) for name, number in given.items()}
        self._settings = CheckpointSettings(**mode, retention=Retention.DELETE, **numbers)
        self._master = ScriptMaster(self, self._graph, self._settings, restarts)
        self.do_go("on")
        self._lines = [line for line in self._lines if line[1]]

    def do_checkpoint(self, _: str) -> None:
        """checkpoint: a user asks for a checkpoint."""
        self._request(RequestKind.CHECKPOINT)

    def do_savepoint(self, _: str) -> None:
        """savepoint: a user asks for a savepoint."""
        self._request(RequestKind.SAVEPOINT)

    def do_stop(self, words: str) -> None:
        """stop [drain]: a user asks for a stop with savepoint."""
        self._request(RequestKind.STOP, drain=words == "drain")

    def _request(self, kind: RequestKind, *, drain: bool = False) -> None:
        self._requests += 1
        target = None if kind is RequestKind.CHECKPOINT else "savepoints"
        request = RequestId(self._requests)
        asked = CheckpointRequested(request=request, kind=kind, target=target, drain=drain)
        self._master.decisions.feed_coordinator(asked)

    def do_tick(self, words: str) -> None:
        """tick MS: time passes, with a stop at every deadline."""
        until = Instant(self.now + int(words))
        while (deadline := self._next_deadline()) is not None and deadline <= until:
            self.now = self._master.decisions.now = max(self.now, deadline)
            self._master.decisions.tick()
            for task in self._tasks.values():
                task.tick()
            self._master.turn()
        self.now = self._master.decisions.now = until

    def _next_deadline(self) -> Instant | None:
        times = [self._master.decisions.next_deadline(), *(task.next_deadline() for task in self._tasks.values())]
        return min((time for time in times if time is not None), default=None)

    def do_deliver(self, words: str) -> None:
        """deliver [first] FROM -> TO: what lies in the queues, or the first message of each queue, is received."""
        pattern = words.removeprefix("first ")
        for queue in self._matching(pattern):
            for _ in range(1 if pattern != words else len(self._queues[queue])):
                self._deliver(queue)

    def do_drop(self, words: str) -> None:
        """drop FROM -> TO: what lies in the queues is lost."""
        for queue in self._matching(words):
            while self._queues[queue]:
                self.say("lost", f"{' -> '.join(queue)}: {words_of(self._pop(queue))}")

    def do_go(self, words: str) -> None:
        """go on: deliver every message and perform all storage work that is not held, until nothing moves."""
        if words != "on":
            raise ValueError(f"'go {words}' is no command; 'go on' is")
        self._master.turn()
        while True:
            queues = [q for q, content in self._queues.items() if content and not self._is_held(" -> ".join(q))]
            works = [name for name, work in self._works.items() if work.is_ready() and not self._is_held(name)]
            if not queues and not works:
                return
            for queue in queues:
                self._deliver(queue)
            for name in works:
                if name in self._works:
                    self.do_durable(name)

    def do_hold(self, words: str) -> None:
        """hold NAME: `go on` leaves this queue, or this storage work, alone."""
        self._held.append(words)

    def do_release(self, words: str) -> None:
        """release NAME: the opposite of `hold`."""
        self._held.remove(words)

    def do_durable(self, words: str) -> None:
        """durable NAME: storage work succeeds."""
        for name in self._named(words):
            if self._works[name].is_ready():
                self.say("durable", name)
                self._works.pop(name).done()
                self._master.turn()
            else:
                self.say("not yet", f"{name} waits for data in flight")

    def do_refuse(self, words: str) -> None:
        """refuse NAME: storage work fails."""
        for name in self._named(words):
            self.say("refused", name)
            self._works.pop(name).failed("storage says no")
            self._master.turn()

    def do_emit(self, words: str) -> None:
        """emit FROM -> TO BATCH ...: a source sends batches to a window."""
        sender, _, receiver, *batches = words.split()
        for batch in batches:
            self.send(sender, receiver, batch)

    def do_busy(self, words: str) -> None:
        """busy TASK: the task has no room for the output of further batches, and reads none."""
        self._task(words).is_busy = True

    def do_idle(self, words: str) -> None:
        """idle TASK: the opposite of `busy`."""
        self._task(words).is_busy = False
        self._task(words).read()

    def do_finish(self, words: str) -> None:
        """finish TASK: the data of a source has come to its end."""
        self._task(words).finish_data(EndOfData())

    def do_fail(self, words: str) -> None:
        """fail TASK: the task raises."""
        self._task(words).fail("a function raised")

    def do_lose(self, words: str) -> None:
        """lose slot-N: the process of a slot dies, with its tasks. What they said last may still be on its way."""
        place = int(words.removeprefix("slot-"))
        for task in [t for t in self._tasks if t.subtask == place]:
            del self._tasks[task]
            self._queues.pop(("master", str(task)), None)
            self._works = {name: work for name, work in self._works.items() if not name.endswith(f" {task}")}
        self._master.lose(place)

    def do_register(self, words: str) -> None:
        """register slot-N: the next process of a slot has started."""
        self._master.register(int(words.removeprefix("slot-")))

    def do_show(self, _: str) -> None:
        """show: all that lies in queues, and the storage work that waits."""
        for queue, content in self._queues.items():
            left = copy.deepcopy(content)
            while (head := left.peek()) is not None:
                left.pop()
                self.say(" -> ".join(queue), words_of(head[0]))
        for name in self._works:
            self.say("to be durable", name)

    # --- names ------------------------------------------------------------------------------

    def _task(self, name: str) -> ScriptTask:
        return next(task for known, task in self._tasks.items() if str(known) == name)

    def _matching(self, pattern: str) -> list[Ends]:
        found = [q for q, content in self._queues.items() if content and _matches(pattern, " -> ".join(q))]
        if not found:
            raise ValueError(f"nothing lies in {pattern}")
        return found

    def _named(self, pattern: str) -> list[str]:
        found = [name for name in self._works if _matches(pattern, name)]
        if not found:
            raise ValueError(f"storage work {pattern!r} does not wait; {', '.join(self._works) or 'no work'} does")
        return found

    def _is_held(self, name: str) -> bool:
        return any(_matches(pattern, name) for pattern in self._held)

    # --- what tasks and the master need -----------------------------------------------------

    def say(self, who: object, text: str, *, loud: bool = False) -> None:
        """Add a line to what happened. Loud lines are told quietly, too."""
        self._lines.append((f"{who}: {text}", loud))

    def queue(self, sender: object, receiver: object) -> OutputQueue[Any]:
        """What one has sent to another and is not received."""
        return self._queues.setdefault((str(sender), str(receiver)), OutputQueue())

    def send(self, sender: object, receiver: object, message: Any) -> None:
        """Put a message at the end of a queue."""
        if isinstance(message, CancelMarker | EndOfData | EndOfPartition):
            self.queue(sender, receiver).add_element(message)
        else:
            self.queue(sender, receiver).add_data(message, 1)
        self.say(f"{sender} -> {receiver}", words_of(message))

    def store(
        self,
        name: str,
        done: Callable[[], None],
        failed: Callable[[str], None],
        is_ready: Callable[[], bool] = lambda: True,
    ) -> None:
        """The script can perform this storage work, or have it fail, from here on."""
        self._works[name] = Work(done, failed, is_ready)

    def cut_channels(self, tasks: tuple[TaskId, ...]) -> None:
        """What lies in the channels of these tasks is gone."""
        names = {str(task) for task in tasks}
        self._queues = {
            ends: content for ends, content in self._queues.items() if "master" in ends or not names & {*ends}
        }

    # --- delivering -------------------------------------------------------------------------

    def _pop(self, queue: Ends) -> Any:
        head = self._queues[queue].peek()
        if head is None:
            raise AssertionError(f"nothing lies in {queue}")
        self._queues[queue].pop()
        return head[0]

    def _deliver(self, queue: Ends) -> None:
        if not self._queues.get(queue):
            # What was delivered before has cut the channel.
            return
        message = self._pop(queue)
        ids = {str(task): task for task in self._graph.tasks}
        sender, receiver = queue
        if receiver == "master":
            self._master.hear(message)
        elif sender == "master":
            self._tell(ids[receiver], message)
        elif (task := self._tasks.get(ids[receiver])) is not None and not task.life.state.is_over:
            if isinstance(message, DataTaken):
                task.data_taken(ids[sender])
            else:
                task.arrive(ids[sender], message)
        self._master.turn()

    def _tell(self, task: TaskId, message: Any) -> None:
        """The slot of a task hears something of the master. `runtime/slot/driver.py` does the same."""
        found = self._tasks.get(task)
        is_alive = found is not None and found.epoch == message.epoch and not found.life.state.is_over
        match message:
            case RestoreTask(epoch=epoch):
                self._tasks[task] = self._restored(task, message)
                self.send(task, "master", TaskRestored(task, epoch))
            case CancelTasks(epoch=epoch):
                if found is not None and not found.life.state.is_over:
                    found.stop()
                self.send(task, "master", TaskDropped(task, epoch))
            case _ if found is None or not is_alive:
                if isinstance(message, TriggerCheckpoint):
                    self._decline(task, message)
            case Run():
                found.start()
            case _:
                found.hear(message)

    def _restored(self, task: TaskId, message: RestoreTask) -> ScriptTask:
        def tasks_of(vertices: list[VertexId]) -> list[TaskId]:
            tasks = [other for vertex in vertices for other in self._graph.vertex(vertex).tasks]
            return [other for other in tasks if all_to_all or other.subtask == task.subtask]

        edges = self._graph.edges
        all_to_all = edges[0].all_to_all
        return ScriptTask(
            task,
            self,
            settings=self._settings,
            epoch=message.epoch,
            restored=message.restored,
            senders=tasks_of([edge.upstream for edge in edges if edge.downstream == task.vertex]),
            receivers=tasks_of([edge.downstream for edge in edges if edge.upstream == task.vertex]),
        )

    def _decline(self, task: TaskId, message: TriggerCheckpoint) -> None:
        declined = Decline(
            job=JobId("job"),
            epoch=message.epoch,
            task=task,
            checkpoint=CheckpointId(message.checkpoint),
            reason=CheckpointFailure.UNKNOWN_TASK_NOTIFICATION_FAILED,
            error="the slot does not run the task",
        )
        self.send(task, "master", declined)


def _matches(pattern: str, name: str) -> bool:
    """Whether a name is meant. A star stands for anything."""
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), name) is not None
