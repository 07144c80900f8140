"""Async functions of the user's on an event loop, in a thread of its own beside the loop of the slot.

A process has one such thread, however many async functions its tasks have. The thread is made with the first function.
A call that blocks the event loop, or does not end when it is cancelled, cannot keep the slot from leaving: the slot
waits for the thread for `CLOSE_TIMEOUT_S`, and not longer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from penstock.ports import WorkResult

CLOSE_TIMEOUT_S = 5.0
"""How long cancelled calls, and the `close` of a function, may take."""

log = logging.getLogger(__name__)

Answered = Callable[[Sequence[tuple[int, WorkResult]]], None]


class AsyncioCalls:
    """`AsyncCalls` on one daemon thread. The thread calls `wake` when calls have ended."""

    def __init__(self, wake: Callable[[], None], *, name: str) -> None:
        self._wake = wake
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over: asyncio.AbstractEventLoop | None = None
        """The event loop that has been stopped."""
        self._thread: threading.Thread | None = None
        self._conversations: list[AsyncioConversation] = []

    def begin(self, function: Callable[[Any], Coroutine[Any, Any, Any]], answered: Answered) -> AsyncioConversation:
        """Begin to call a function. A later `collect` calls `answered` with the calls that have ended."""
        with self._lock:
            # Not before: most slots have no async function, and the thread must be made after the fork.
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._run, args=(self._loop,), name=self._name, daemon=True)
                self._thread.start()
            known = [each for each in self._conversations if not each.is_over]
            closings = [each.closing for each in known if each.closing is not None]
            begun = AsyncioConversation(self._loop, function, answered, wake=self._wake, behind=closings)
            self._conversations = [*known, begun]
        return begun

    def collect(self) -> None:
        """Tell the calls that have ended since the last `collect`, on the loop."""
        for conversation in self._conversations:
            conversation.tell()

    def close(self) -> None:
        """Give up all calls, and end the thread. Returns after `CLOSE_TIMEOUT_S`, even if the thread has not ended."""
        with self._lock:
            loop, self._loop = self._loop, None
        thread = self._thread
        if loop is None or thread is None:
            return
        for conversation in self._conversations:
            conversation.close(None)
        closings = [each.closing for each in self._conversations if each.closing is not None]

        async def end() -> None:
            await asyncio.wait([asyncio.wrap_future(each) for each in closings], timeout=CLOSE_TIMEOUT_S)
            self._stop(loop)

        if closings:
            asyncio.run_coroutine_threadsafe(end(), loop)
        else:
            loop.call_soon_threadsafe(self._stop, loop)
        thread.join(timeout=2 * CLOSE_TIMEOUT_S)

    def _stop(self, loop: asyncio.AbstractEventLoop) -> None:
        self._over = loop
        loop.stop()

    @property
    def is_alive(self) -> bool:
        """Whether the thread has not ended. After `close`, only a call that hangs keeps the thread alive."""
        return self._thread is not None and self._thread.is_alive()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        # Threads of `asyncio.to_thread`. The name says whose threads they are if a call in them hangs.
        pool = ThreadPoolExecutor(thread_name_prefix=self._name)
        loop.set_default_executor(pool)
        try:
            while self._over is not loop:
                # `sys.exit()` in a task that a function began leaves the event loop. All other calls go on, and whoever
                # waits for the task is told.
                with contextlib.suppress(SystemExit, KeyboardInterrupt):
                    loop.run_forever()
        finally:
            # Calls that do not let themselves be cancelled are dropped, and Python would complain of each of them.
            loop.set_exception_handler(lambda *_: None)
            for task in asyncio.all_tasks(loop):
                task.cancel()
            with contextlib.suppress(Exception):
                loop.run_until_complete(loop.shutdown_asyncgens())
            pool.shutdown(wait=False, cancel_futures=True)
            loop.close()


class AsyncioConversation:
    """`Conversation` of one function. `_calls` belongs to the thread of the event loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        function: Callable[[Any], Coroutine[Any, Any, Any]],
        answered: Answered,
        *,
        wake: Callable[[], None],
        behind: Sequence[Future[None]] = (),
    ) -> None:
        """`behind` are the last coroutines of functions that were closed before."""
        self.is_closed = False
        self.closing: Future[None] | None = None
        """The future of the last coroutine."""
        self._behind = behind
        self._loop = loop
        self._function = function
        self._answered = answered
        self._wake = wake
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._ended: deque[tuple[int, WorkResult]] = deque()

    @property
    def is_over(self) -> bool:
        """Whether the last coroutine has ended."""
        return self.closing is not None and self.closing.done()

    def open(self, opening: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Run a coroutine to its end. Blocks. Functions that were closed before are closed first, unless that takes
        long: what `open` makes and `close` ends may be shared by the old and the new function."""
        wait(self._behind, timeout=CLOSE_TIMEOUT_S)
        asyncio.run_coroutine_threadsafe(_shielded(opening), self._loop).result()

    def ask(self, calls: Sequence[tuple[int, Any]]) -> None:
        """Call the function, for each call with its argument."""
        self._loop.call_soon_threadsafe(self._begin, calls)

    def cancel(self, calls: Sequence[int]) -> None:
        """Give calls up."""
        self._loop.call_soon_threadsafe(self._cancel, calls)

    def tell(self) -> None:
        """Tell the calls that have ended since the last call of `tell`."""
        ended = []
        while self._ended:
            ended.append(self._ended.popleft())
        if ended and not self.is_closed:
            self._answered(ended)

    def close(self, closing: Callable[[], Coroutine[Any, Any, Any]] | None) -> None:
        """Give up all calls, then run the last coroutine."""
        if not self.is_closed:
            self.is_closed = True
            self.closing = asyncio.run_coroutine_threadsafe(self._close(closing), self._loop)

    # --- on the thread of the event loop ---------------------------------------------------------

    def _begin(self, calls: Sequence[tuple[int, Any]]) -> None:
        for call, argument in calls:
            self._calls[call] = self._loop.create_task(self._call(call, argument))

    def _cancel(self, calls: Sequence[int]) -> None:
        for call in calls:
            if (task := self._calls.pop(call, None)) is not None:
                task.cancel()

    async def _call(self, call: int, argument: Any) -> None:
        try:
            result = WorkResult(value=await self._function(argument))
        except BaseException as error:  # noqa: BLE001  # also `sys.exit()` of user code: the operator decides what it means
            if error.__traceback__ is not None:
                # Only the frames of user code are of use.
                error.__traceback__ = error.__traceback__.tb_next
            result = WorkResult(error=error)
        self._calls.pop(call, None)
        self._ended.append((call, result))
        # The loop takes all calls that have ended until then: one wake is enough. Counted after the append, because the
        # loop may take the calls before at any moment.
        if len(self._ended) == 1:
            self._wake()

    async def _close(self, closing: Callable[[], Coroutine[Any, Any, Any]] | None) -> None:
        under_way = list(self._calls.values())
        for task in under_way:
            task.cancel()
        if under_way:
            await asyncio.wait(under_way, timeout=CLOSE_TIMEOUT_S / 2)
        if closing is None:
            return
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S / 2):
                await _shielded(closing)
        except Exception as error:  # the task is over, and nobody waits for an answer
            log.warning("the close of an async function raised %s: %s", type(error).__name__, error, exc_info=True)


async def _shielded(made: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    """Run user code whose `sys.exit()` must not end the thread."""
    try:
        await made()
    except (SystemExit, KeyboardInterrupt) as error:
        raise RuntimeError(f"the async function raised {type(error).__name__}") from error
