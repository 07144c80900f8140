"""Processors written against PySpark's documentation alone, and a job's worth of rows for them."""

# Names and parameters are those of PySpark's class.
# ruff: noqa: N802, N803

from __future__ import annotations

import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

GAP_MS = 1_000


class RunningCount(StatefulProcessor):
    """How many rows a key has had; one result per call."""

    def init(self, handle):
        self.count = handle.getValueState("count", "n bigint")

    def handleInputRows(self, key, rows, timerValues):
        count = self.count.get()[0] if self.count.exists() else 0
        count += sum(1 for _ in rows)
        self.count.update((count,))
        yield Row(k=key[0], what="count", v=count)

    def close(self):
        pass


class Sessions(StatefulProcessor):
    """Adds up what comes without a gap; tells of a session when its gap has passed."""

    def init(self, handle):
        self.handle = handle
        self.session = handle.getValueState("session", "total bigint, last bigint")

    def handleInputRows(self, key, rows, timerValues):
        total, last = self.session.get() or (0, None)
        for row in rows:
            total += row.v
            last = row.t if last is None else max(last, row.t)
        for timer in self.handle.listTimers():
            self.handle.deleteTimer(timer)
        self.handle.registerTimer(last + GAP_MS)
        self.handle.registerTimer(last + GAP_MS)
        self.session.update((total, last))
        return iter([])

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        total, _ = self.session.get()
        expired = expiredTimerInfo.getExpiryTimeInMs()
        assert list(self.handle.listTimers()) == [expired]
        yield Row(what="session", v=total, k=key[0])
        self.session.clear()


class Reminders(StatefulProcessor):
    """Several timers per key, in processing time, some of which are taken back."""

    def init(self, handle):
        self.handle = handle
        self.fired = handle.getListState("fired", "at bigint")

    def handleInputRows(self, key, rows, timerValues):
        now = timerValues.getCurrentProcessingTimeInMs()
        assert timerValues.getCurrentWatermarkInMs() == -1
        for row in rows:
            if row.v < 0:
                self.handle.deleteTimer(now - row.v)
            else:
                self.handle.registerTimer(now + row.v + 1)
        yield from (Row(k=key[0], what="set", v=timer) for timer in self.handle.listTimers())

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        expired = expiredTimerInfo.getExpiryTimeInMs()
        # It is still set while this runs, and setting it again changes nothing.
        assert expired in list(self.handle.listTimers())
        self.handle.registerTimer(expired)
        self.fired.appendValue((expired,))
        yield Row(k=key[0], what="fired", v=expired)


class FirstSeen(StatefulProcessor):
    """Hands on the first row of every value, and forgets it after `ttl_ms` if that is given."""

    def __init__(self, ttl_ms=None):
        self.ttl_ms = ttl_ms

    def init(self, handle):
        self.seen = handle.getMapState("seen", "v bigint", "t bigint", self.ttl_ms)

    def handleInputRows(self, key, rows, timerValues):
        for row in rows:
            if not self.seen.containsKey((row.v,)):
                self.seen.updateValue((row.v,), (row.t,))
                yield Row(k=key[0], what="first", v=row.v)


class TopThree(StatefulProcessor):
    """The three greatest values, in a list."""

    def init(self, handle):
        self.top = handle.getListState("top", "v bigint, t bigint")

    def handleInputRows(self, key, rows, timerValues):
        top = [*self.top.get(), *((row.v, row.t) for row in rows)]
        top = sorted(top, reverse=True)[:3]
        if top[0][0] % 7 == 0:
            self.top.clear()
            self.top.appendList(top)
        else:
            self.top.put(top)
        return iter([Row(k=key[0], what="top", v=sum(v for v, _ in top))])


class Pairs(StatefulProcessor):
    """Joins values that differ in sign only, by maps of two fields; odd ones are removed when they met."""

    def init(self, handle):
        self.open = handle.getMapState("open", "size bigint, side string", "t bigint, tags array<string>")

    def handleInputRows(self, key, rows, timerValues):
        for row in rows:
            mine, other = ((abs(row.v), "+"), (abs(row.v), "-"))[:: 1 if row.v >= 0 else -1]
            met = self.open.getValue(other)
            if met is not None:
                yield Row(k=key[0], what="pair", v=abs(row.v))
                if row.v % 2:
                    self.open.removeKey(other)
                    continue
            self.open.updateValue(mine, (row.t, [mine[1]]))
        if len(list(self.open.keys())) > 12:
            self.open.clear()


class Seeded(RunningCount):
    """A count that begins with what an initial state says."""

    def handleInitialState(self, key, initialState, timerValues):
        before = self.count.get()
        self.count.update(((before[0] if before else 0) + initialState.n,))


class PandasCount(StatefulProcessor):
    """The sum of a key's values, in DataFrames."""

    def init(self, handle):
        self.sum = handle.getValueState("sum", "v bigint, rows bigint")

    def handleInputRows(self, key, rows, timerValues):
        total, count = self.sum.get() or (0, 0)
        for frame in rows:
            total += frame["v"].sum()
            count += len(frame)
        self.sum.update((total, count))
        yield pd.DataFrame({"k": [key[0]], "what": ["sum"], "v": [total]})
        yield pd.DataFrame()

    def close(self):
        pass


class PandasReminders(StatefulProcessor):
    """The sum of a key's values, told of when a timer is due; begins with what an initial state says."""

    def init(self, handle):
        self.handle = handle
        self.sum = handle.getValueState("sum", "v bigint")

    def handleInitialState(self, key, initialState, timerValues):
        self._add(initialState["n"].sum(), timerValues)

    def handleInputRows(self, key, rows, timerValues):
        for frame in rows:
            self._add(frame["v"].sum(), timerValues)
        yield pd.DataFrame()

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        (total,) = self.sum.get()
        yield pd.DataFrame({"k": [key[0]], "what": ["due"], "v": [total + expiredTimerInfo.getExpiryTimeInMs()]})

    def _add(self, more, timerValues):
        (total,) = self.sum.get() or (0,)
        self.sum.update((int(total + more),))
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + int(abs(more)) % 7 + 1)
