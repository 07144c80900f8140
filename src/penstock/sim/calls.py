"""Async functions of a simulated process: an event loop without threads and sockets, whose time is virtual.

A call runs at one moment, and its answer comes as much later as the function has slept. The order of the answers is
decided by these times and by the seed. A function that waits for something that never comes has no answer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, NoReturn, TypeVar

from penstock.core.errors import UsageError
from penstock.ports import WorkResult
from penstock.sim.background import Pace
from penstock.sim.world import Actor, Crash

ResultT = TypeVar("ResultT")
Answered = Callable[[Sequence[tuple[int, WorkResult]]], None]


class _Stuck(Exception):
    """Nothing will ever happen in the event loop."""


def _nothing(*_: object) -> None:
    """Do nothing."""


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop whose clock goes to the next timer at once."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = self
        self._time_s = 0.0

    def time(self) -> float:
        """The time of this loop, in seconds."""
        return self._time_s

    def select(self, timeout: float | None) -> list[Any]:
        """Wait, as a selector does: go to the time of the next timer."""
        if timeout is None:
            raise _Stuck
        self._time_s += max(0.0, timeout)
        return []

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]  # noqa: ARG002
        """Call a function at once: there are no threads."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except (Crash, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001  # also `sys.exit()`: whoever awaits the future gets it
            future.set_exception(error)
        return future

    async def create_connection(self, *args: Any, **kwargs: Any) -> NoReturn:  # noqa: ARG002
        """Never: there is no network."""
        raise _no_network()

    async def sock_connect(self, *args: Any, **kwargs: Any) -> NoReturn:  # noqa: ARG002
        """Never: there is no network."""
        raise _no_network()

    # Called by asyncio: no event ever comes from outside, and nobody has to be woken.
    _process_events: Any = _nothing
    _write_to_self: Any = _nothing

    def __del__(self) -> None:
        # A process that crashed has not closed its loop, which holds no socket.
        pass


def _no_network() -> UsageError:
    return UsageError(
        "an async function opened a connection, and the simulated cluster has no network",
        hint="give the function a client that answers by itself, for example as an argument of its class",
    )


class SimCalls:
    """`AsyncCalls` of one actor."""

    def __init__(self, actor: Actor, pace: Pace) -> None:
        self._actor = actor
        self._pace = pace
        self._conversations: list[SimConversation] = []

    def begin(self, function: Callable[[Any], Coroutine[Any, Any, Any]], answered: Answered) -> SimConversation:
        """Begin to call a function."""
        begun = SimConversation(self._actor, self._pace, function, answered)
        self._conversations = [*(each for each in self._conversations if not each.is_closed), begun]
        return begun

    def collect(self) -> None:
        """Tell the calls that have ended since the last `collect`."""
        for conversation in self._conversations:
            conversation.tell()


class SimConversation:
    """`Conversation` of one function."""

    def __init__(
        self, actor: Actor, pace: Pace, function: Callable[[Any], Coroutine[Any, Any, Any]], answered: Answered
    ) -> None:
        self.is_closed = False
        self._actor = actor
        self._pace = pace
        self._function = function
        self._answered = answered
        self._loop = VirtualLoop()
        self._given_up: dict[int, None] = {}
        self._ended: deque[tuple[int, WorkResult]] = deque()

    def open(self, opening: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Run a coroutine to its end."""
        if not self._run(opening()):
            raise UsageError("the open of an async function waits for something that never comes")

    def ask(self, calls: Sequence[tuple[int, Any]]) -> None:
        """Call the function, for each call with its argument, a little later."""
        for call, argument in calls:
            self._later(self._pace.draw_us(), partial(self._call, call, argument))

    def cancel(self, calls: Sequence[int]) -> None:
        """Give calls up."""
        self._given_up.update(dict.fromkeys(calls))

    def close(self, closing: Callable[[], Coroutine[Any, Any, Any]] | None) -> None:
        """Give up all calls, then run the last coroutine."""
        if not self.is_closed:
            self.is_closed = True
            if closing is not None:
                self._run(closing())

    def tell(self) -> None:
        """Tell the calls that have ended since the last call of `tell`."""
        ended = []
        while self._ended:
            ended.append(self._ended.popleft())
        if ended and not self.is_closed:
            self._answered(ended)

    def _later(self, after_us: int, action: Callable[[], None]) -> None:
        self._actor.world.after(after_us, lambda: self._actor.when_awake(action))

    def _call(self, call: int, argument: Any) -> None:
        if self.is_closed or call in self._given_up:
            return
        self._actor.world.trace("call", self._actor.name)
        begun_s = self._loop.time()
        try:
            with self._actor.world.as_actor(self._actor):
                answer = self._run(_ended(lambda: self._function(argument)))
        except Crash:
            self._actor.on_crash()
            return
        for result in answer:
            took_us = int((self._loop.time() - begun_s) * 1_000_000)
            self._later(took_us + self._pace.draw_us(), partial(self._end, call, result))

    def _end(self, call: int, result: WorkResult) -> None:
        self._ended.append((call, result))
        self._actor.wake()

    def _run(self, coroutine: Coroutine[Any, Any, ResultT]) -> tuple[ResultT, ...]:
        """Run a coroutine to its end. Returns its result; nothing if the coroutine waits for ever."""
        task = self._loop.create_task(coroutine)
        try:
            while True:
                try:
                    return (self._loop.run_until_complete(task),)
                except SystemExit:
                    # A task that the function began has ended the event loop. Whoever waits for that task is told.
                    if task.done():
                        raise
        except _Stuck:
            task.cancel()
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001  # it may refuse to end
            self._loop.call_soon(self._loop.stop)
            self._loop.run_forever()
            return ()


async def _ended(made: Callable[[], Coroutine[Any, Any, Any]]) -> WorkResult:
    """The end of a call. Inside of the event loop, because asyncio lets `sys.exit()` of a task end the loop, too."""
    try:
        return WorkResult(value=await made())
    except (Crash, KeyboardInterrupt):
        raise
    except BaseException as error:  # noqa: BLE001  # also `sys.exit()` of user code: the operator decides what it means
        if error.__traceback__ is not None:
            error.__traceback__ = _inner(error)
        return WorkResult(error=error)


def _inner(error: BaseException) -> Any:
    """The traceback of an error from the first frame of user code on."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None and _is_machinery(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return trace


def _is_machinery(file: str) -> bool:
    return file == __file__ or file.startswith(str(asyncio.__path__[0]))
