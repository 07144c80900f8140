"""The user of a job in a world: asks for checkpoints and savepoints, rescales, stops and cancels the job, and checks
the answers.

A request is made at its time, or when an event of a kind happens for the first time after that time: so requests hit
the worst moments. Every savepoint has a folder of its own, which shows the files that each request left behind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from random import Random

from penstock.core.coordinator.effects import RequestFailure
from penstock.core.coordinator.events import RequestKind
from penstock.core.job.events import JobState
from penstock.core.recovery.metadata import CompletedCheckpoint
from penstock.runtime.master.driver import SnapshotRequest
from penstock.sim.checkers import Ledger, missing_files, referred_files, root_of
from penstock.sim.disk import Disk, is_below
from penstock.sim.masters import MasterHost
from penstock.sim.rules import Rule
from penstock.sim.world import World

DELETED_US = 4_000_000
"""How long it may take until a savepoint that failed is deleted: longer than a slow storage takes for one call."""


class Wish(Enum):
    """What a user wants."""

    CHECKPOINT = "checkpoint"
    SAVEPOINT = "savepoint"
    STOP = "stop"
    DRAIN = "stop with drain"
    CANCEL = "cancel"
    RESCALE = "rescale"

    @property
    def stops(self) -> bool:
        """Whether the job ends with a savepoint."""
        return self in (Wish.STOP, Wish.DRAIN)


class Moment(Enum):
    """When a request is made."""

    THEN = "then"
    """At the time of the request."""
    RUN = "run"
    """When the next attempt has been told to run."""
    CHECKPOINT = "checkpoint"
    """When the next checkpoint has become durable, and the master does not know it yet."""
    FAILURE = "failure"
    """When the next attempt has failed, and the job is about to restart."""


@dataclass(frozen=True, kw_only=True)
class UserRequest:
    """Something that a user asks for once."""

    at_ms: int
    wish: Wish
    moment: Moment = Moment.THEN
    delay_ms: int = 0
    """How long after the moment the request is made."""
    parallelism: int | None = None
    """The parallelism that a rescale asks for; None for other requests."""


def draw_requests(random: Random, *, duration_ms: int) -> tuple[UserRequest, ...]:
    """The requests of a world, by time. Most jobs end with the end of the data, some with a stop."""
    if random.random() < 0.45:
        return ()
    wishes = [random.choice((Wish.CHECKPOINT, Wish.SAVEPOINT)) for _ in range(random.choice((0, 1, 1, 2, 4)))]
    ends = random.choice(
        ((), (), (Wish.STOP,), (Wish.DRAIN,), (Wish.STOP, Wish.STOP), (Wish.DRAIN, Wish.STOP), (Wish.STOP, Wish.CANCEL))
    )
    drawn = [_draw_request(random, wish, duration_ms) for wish in (*wishes, *ends)]
    if len(ends) > 1 and random.random() < 0.7:
        # The second request follows right after the first request.
        first, second = drawn[-2:]
        drawn[-1] = UserRequest(
            at_ms=first.at_ms,
            wish=second.wish,
            moment=first.moment,
            delay_ms=first.delay_ms + random.choice((0, 1, random.randint(0, 100))),
        )
    return tuple(sorted(drawn, key=lambda request: request.at_ms))


def draw_savepoint_and_cancel(random: Random, *, duration_ms: int) -> tuple[UserRequest, ...]:
    """A savepoint while the job runs, and a cancel of the job some time later."""
    at_ms, delay_ms = random.choice((0, random.randint(0, duration_ms))), random.randint(0, duration_ms)
    later_ms = delay_ms + random.choice((random.randint(5, 60), random.randint(5, 500)))
    return (
        UserRequest(at_ms=at_ms, wish=Wish.SAVEPOINT, moment=Moment.RUN, delay_ms=delay_ms),
        UserRequest(at_ms=at_ms, wish=Wish.CANCEL, moment=Moment.RUN, delay_ms=later_ms),
    )


def draw_rescales(random: Random, *, duration_ms: int) -> tuple[UserRequest, ...]:
    """The rescales of a world: in some worlds none, in others several."""
    if random.random() < 0.4:
        return ()
    return tuple(
        UserRequest(
            at_ms=random.choice((0, random.randint(0, duration_ms // 2), random.randint(0, duration_ms))),
            wish=Wish.RESCALE,
            # Only a job that runs can be rescaled, so most rescales are asked for while the job runs.
            moment=random.choice((Moment.RUN, Moment.RUN, Moment.RUN, Moment.CHECKPOINT, Moment.CHECKPOINT, *Moment)),
            delay_ms=random.choice((random.randint(0, 20), random.randint(0, 20), random.randint(0, duration_ms // 3))),
            parallelism=random.choice((*range(1, 7), *range(1, 4))),
        )
        for _ in range(random.choice((1, 2, 2, 3, 6)))
    )


def _draw_request(random: Random, wish: Wish, duration_ms: int) -> UserRequest:
    moment = random.choice((Moment.THEN, Moment.RUN, Moment.RUN, Moment.RUN, Moment.CHECKPOINT, Moment.FAILURE))
    delays = (random.randint(0, 20), random.randint(0, 300), random.randint(0, duration_ms))
    return UserRequest(
        at_ms=0 if random.random() < 0.3 else random.randint(0, duration_ms),
        wish=wish,
        moment=moment,
        delay_ms=0 if moment is Moment.THEN else random.choice(delays),
    )


@dataclass(frozen=True)
class Rescaled:
    """The job runs with another parallelism."""

    parallelism: int


@dataclass(frozen=True)
class NotRescaled:
    """The parallelism was not changed."""

    text: str


Answer = CompletedCheckpoint | RequestFailure | Rescaled | NotRescaled


@dataclass
class Asked:
    """A request that was made, and what came of it."""

    wish: Wish
    target: str | None
    answers: list[Answer] = field(default_factory=list)
    abandoned: bool = False
    """Whether the driver died, or lost the job, before the driver had answered the request."""
    failed_us: int | None = None
    """When the user was told that the request failed and that no savepoint exists; None: never."""
    forgotten_us: int | None = None
    """When the driver that had told the user of the failure died or lost the job; None: never."""
    given: dict[str, bytes] = field(default_factory=dict)
    """The files of the savepoint that was promised, as they were when it was promised."""
    parallelism: int | None = None
    """The parallelism that a rescale asks for; None for other requests."""

    @property
    def is_granted(self) -> bool:
        """Whether the first answer says that the request was fulfilled."""
        return bool(self.answers) and isinstance(self.answers[0], CompletedCheckpoint | Rescaled)

    @property
    def savepoint(self) -> CompletedCheckpoint | None:
        """The savepoint that was promised; None if no savepoint was promised."""
        answer = self.answers[0] if self.answers else None
        return answer if self.target is not None and isinstance(answer, CompletedCheckpoint) else None


class User:
    """Makes the requests of a scenario and keeps the answers."""

    def __init__(self, world: World, *, disk: Disk, ledger: Ledger, masters: MasterHost) -> None:
        self._world = world
        self._disk = disk
        self._ledger = ledger
        self._masters = masters
        self._waiting: dict[Moment, list[UserRequest]] = {moment: [] for moment in Moment}
        self._parallelism = 0
        self._asked_before = 0
        """How many requests were made before the newest driver had the job."""
        self.asked: list[Asked] = []
        self.on_rescale: Callable[[], None] = lambda: None
        """Called when the user asks for another parallelism."""
        self.on_drain: Callable[[], None] = lambda: None
        """Called when the user asks for a stop with drain."""

    def schedule(self, requests: tuple[UserRequest, ...]) -> None:
        """Put all requests on the heap."""
        for request in requests:
            self._world.at(request.at_ms * 1_000, self._when_due(request))

    def happened(self, moment: Moment) -> None:
        """A moment has come: the requests that wait for the moment are made after their delays."""
        due, self._waiting[moment] = self._waiting[moment], []
        for request in due:
            self._world.after(request.delay_ms * 1_000, self._asking(request))

    def _when_due(self, request: UserRequest) -> Callable[[], None]:
        if request.moment is Moment.THEN:
            return self._asking(request)
        return lambda: self._waiting[request.moment].append(request)

    def _asking(self, request: UserRequest) -> Callable[[], None]:
        return lambda: self._ask(request)

    def _ask(self, wanted: UserRequest) -> None:
        if self._masters.actor is None:
            return
        wish = wanted.wish
        self._world.note("user", f"asks for a {wish.value}")
        if wish is Wish.CANCEL:
            self._masters.call(lambda driver: driver.cancel())
            return
        if wanted.parallelism is not None:
            self._rescale(wanted.parallelism)
            return
        target = None if wish is Wish.CHECKPOINT else f"savepoints/{len(self.asked)}"
        asked = Asked(wish, target)
        self.asked.append(asked)
        if wish is Wish.DRAIN:
            self.on_drain()
        kind = {Wish.CHECKPOINT: RequestKind.CHECKPOINT, Wish.SAVEPOINT: RequestKind.SAVEPOINT}.get(
            wish, RequestKind.STOP
        )
        request = SnapshotRequest(kind=kind, target=target, drain=wish is Wish.DRAIN)
        self._masters.call(lambda driver: driver.request(request, lambda answer: self._answered(asked, answer)))

    def _rescale(self, parallelism: int) -> None:
        asked = Asked(Wish.RESCALE, None, parallelism=parallelism)
        self.asked.append(asked)

        def answered(text: str | None) -> None:
            self._answered(asked, Rescaled(parallelism) if text is None else NotRescaled(text))

        self._masters.call(lambda driver: driver.rescale(parallelism, answered))
        self.on_rescale()

    def driver_begins(self, parallelism: int) -> None:
        """A driver has the job, with the parallelism that the program says."""
        self._parallelism = parallelism
        self._asked_before = len(self.asked)

    def deployed(self, parallelism: int) -> None:
        """An attempt begins with `parallelism` slots."""
        # Also requests that count as abandoned: a driver that sleeps has the job until another driver has claimed it,
        # and may fulfil a request until then.
        wanted = [asked.parallelism for asked in self.asked[self._asked_before :] if not asked.answers]
        if parallelism != self._parallelism and parallelism not in wanted:
            self._world.violate(
                Rule.ANSWERED,
                f"an attempt has {parallelism} slots instead of {self._parallelism}, and no request asked for that",
            )
        self._parallelism = parallelism

    def lose_driver(self) -> None:
        """The driver has died, or its job is taken over: open requests get no answer."""
        for asked in self.asked:
            asked.abandoned = asked.abandoned or not asked.answers
            if asked.failed_us is not None and asked.forgotten_us is None:
                asked.forgotten_us = self._world.now_us

    def may_have_begun(self, path: str) -> bool:
        """Whether a file may be part of a savepoint whose driver died before the driver had answered the user, or
        before the driver had deleted the files of the failed savepoint."""
        concerned = [a for a in self.asked if a.target is not None and is_below(path, a.target)]
        return any(asked.abandoned or self._is_forgotten(asked, path) for asked in concerned)

    def _is_forgotten(self, asked: Asked, path: str) -> bool:
        """Whether a file of a failed savepoint may be left because the driver died or lost the job. Only that driver
        knows of the failed savepoint: the next driver cannot delete the file. A file that exists when the user is told
        of the failure is deleted within `DELETED_US`. A file that is written later is deleted at the latest when the
        job ends."""
        if asked.failed_us is None or asked.forgotten_us is None:
            return False
        late = self._disk.written_us.get(path, 0) >= asked.failed_us
        return late or asked.forgotten_us - asked.failed_us < DELETED_US

    @property
    def may_have_stopped(self) -> bool:
        """Whether a driver may have stopped the job and died before the driver had told the user."""
        return any(asked.abandoned and asked.wish.stops for asked in self.asked)

    # --- whether the answers are true -----------------------------------------------------------------------

    def _answered(self, asked: Asked, answer: Answer) -> None:
        asked.answers.append(answer)
        if isinstance(answer, Rescaled | NotRescaled):
            # The answer of a driver whose job was taken over is true of that driver only.
            if not asked.abandoned:
                self._check_rescaled(answer)
            return
        if isinstance(answer, RequestFailure):
            self._world.note("user", f"is told that the {asked.wish.value} failed: {answer.text.splitlines()[0]}")
            if answer.savepoint is not None:
                self._take(asked, answer.savepoint, answer.savepoint.rpartition("/")[0])
            else:
                asked.failed_us = self._world.now_us
            return
        self._world.note("user", f"is told that the {asked.wish.value} is done: {answer.path}")
        if asked.target is not None:
            if not is_below(answer.location, asked.target):
                self._world.violate(
                    Rule.SAVEPOINTS, f"savepoint {answer.location} is not below {asked.target}, as the user asked"
                )
            self._take(asked, answer.path, root_of(answer).rstrip("/"))
        elif answer.checkpoint not in self._ledger.durable:
            self._world.violate(Rule.ANSWERED, f"checkpoint {answer.checkpoint} was promised and is not durable")

    def _check_rescaled(self, answer: Rescaled | NotRescaled) -> None:
        if isinstance(answer, NotRescaled):
            self._world.note("user", f"is told that the rescale failed: {answer.text.splitlines()[0]}")
            return
        self._world.note("user", f"is told that the job has {answer.parallelism} slots")
        if self._parallelism != answer.parallelism:
            self._world.violate(
                Rule.ANSWERED, f"{answer.parallelism} slots were promised, and the job has {self._parallelism} slots"
            )

    def _take(self, asked: Asked, path: str, location: str) -> None:
        """Check the files of a savepoint that was promised, and remember them."""
        files, root = self._disk.files, f"{location}/"
        metadata = files.get(path)
        if metadata is None:
            self._world.violate(Rule.SAVEPOINTS, f"savepoint {path} was promised and does not exist")
            return
        for missing in missing_files(files, metadata, root=root):
            self._world.violate(Rule.SAVEPOINTS, f"savepoint {path} was promised without its file {missing}")
        wanted = (path, *referred_files(metadata, root=root))
        asked.given = {each: files[each] for each in wanted if each in files}

    @property
    def stopped(self) -> Asked | None:
        """The stop that ended the job; None if no stop ended the job."""
        return next((asked for asked in self.asked if asked.wish.stops and asked.savepoint is not None), None)

    @property
    def given(self) -> list[str]:
        """The files of all savepoints that were promised: the files belong to the user."""
        return [path for asked in self.asked for path in asked.given]

    def check_end(self, outcome: JobState | None) -> None:
        """The job is over: check that every request was answered once, and that the promised savepoints are whole."""
        for number, asked in enumerate(self.asked):
            if len(asked.answers) != 1 and not asked.abandoned:
                self._world.violate(
                    Rule.ANSWERED, f"request {number}, a {asked.wish.value}, was answered {len(asked.answers)} times"
                )
            gone = [path for path, data in asked.given.items() if self._disk.files.get(path) != data]
            if gone:
                self._world.violate(
                    Rule.SAVEPOINTS,
                    f"{len(gone)} files of a promised savepoint are gone or changed, such as {gone[0]}",
                )
        if self.stopped is not None and outcome is not JobState.FINISHED:
            self._world.violate(Rule.ANSWERED, f"the user was told that the job has stopped, and the job is {outcome}")
