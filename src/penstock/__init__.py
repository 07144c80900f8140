"""Continuous, stateful, exactly-once stream processing in Python, on the Spark you already run.

    import penstock as ps

Everything a program needs is here; `penstock.connectors` has the sources and sinks, `penstock.testing` helps to test.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import TracebackType

    from penstock.api.aggregate_functions import AggregateFunction
    from penstock.api.aggregates import (
        all,  # noqa: A004
        any,  # noqa: A004
        approx_count_distinct,
        collect_list,
        collect_set,
        count,
        count_distinct,
        first,
        last,
        max,  # noqa: A004
        max_by,
        mean,
        median,
        min,  # noqa: A004
        min_by,
        quantile,
        stddev,
        sum,  # noqa: A004
        top_n,
        variance,
    )
    from penstock.api.alignment import alignment
    from penstock.api.async_functions import AsyncFunction
    from penstock.api.backends import memory, rocksdb
    from penstock.api.checkpointing import Checkpointing
    from penstock.api.connector import (
        Committer,
        End,
        Found,
        Pause,
        Sink,
        SinkWriter,
        Source,
        SourceReader,
        SplitEnumerator,
        SplitProgress,
        UserCodeRaised,
        WriterContext,
    )
    from penstock.api.functions import (
        FunctionContext,
        KeyedBroadcastFunction,
        KeyedCoFunction,
        KeyedContext,
        KeyedFunction,
        ProcessFunction,
        Timer,
        Timers,
    )
    from penstock.api.high_availability import ha_files, zookeeper
    from penstock.api.hooks import CheckpointHook
    from penstock.api.metrics import Counter, Gauge, Histogram, Metrics
    from penstock.api.other_windows import count_window, global_window
    from penstock.api.pane_windows import cumulative, sliding
    from penstock.api.patterns import AnyOf, Pattern, any_of, pattern
    from penstock.api.restarts import exponential_delay, failure_rate, fixed_delay, no_restart
    from penstock.api.restoring import Restore, restore
    from penstock.api.secrets import secret
    from penstock.api.state import (
        AggregatingState,
        BroadcastState,
        ListState,
        MapState,
        RawKeyedState,
        ReducingState,
        ValueState,
        ttl,
    )
    from penstock.api.state_declarations import (
        aggregating_state,
        broadcast_state,
        list_state,
        map_state,
        raw_keyed_state,
        raw_split_list_state,
        raw_union_list_state,
        reducing_state,
        split_list_state,
        union_list_state,
        value_state,
    )
    from penstock.api.streams.connected_stream import ConnectedKeyedStreams, ConnectedStream
    from penstock.api.streams.data_stream import Stream
    from penstock.api.streams.keyed_stream import KeyedStream
    from penstock.api.streams.side_streams import Parts
    from penstock.api.streams.windowed_stream import WindowedStream
    from penstock.api.web import Web
    from penstock.api.windows import session, tumbling
    from penstock.connectors import nexmark
    from penstock.connectors.collect_sink import collect
    from penstock.connectors.csv_sink import csv
    from penstock.connectors.files import files
    from penstock.connectors.generated import generate
    from penstock.connectors.json_sink import json
    from penstock.connectors.kafka.sink import kafka_sink
    from penstock.connectors.kafka.source import kafka
    from penstock.connectors.parquet import parquet
    from penstock.connectors.sockets import socket
    from penstock.connectors.table import table
    from penstock.core.errors import (
        CorruptFile,
        ExternalError,
        HostError,
        InvariantError,
        JobCancelled,
        JobFailed,
        JobTakenOver,
        PeerError,
        RescaleFailed,
        Retry,
        SettingsError,
        SnapshotFailed,
        StorageError,
        StreamError,
        UsageError,
        UserCodeError,
    )
    from penstock.core.job.events import JobState
    from penstock.core.recovery.restore_plan import RestorePlan
    from penstock.core.views import CheckpointDetails
    from penstock.plan.picture import Explanation
    from penstock.runtime.log_lines import configure_logging
    from penstock.runtime.user_metrics import UserMetric
    from penstock.runtime.views import JobView
    from penstock.savepoints.catalog import EdgeInfo, OperatorInfo, StateInfo
    from penstock.settings import NetworkSettings, SlotSettings
    from penstock.spark.data_sources import data_sink, data_source
    from penstock.spark.environment import Environment
    from penstock.spark.job import Job
    from penstock.spark.live_state import LiveState
    from penstock.spark.nexmark_source import NexmarkBids
    from penstock.spark.savepoints import Savepoint, SavepointWriter, new_savepoint, read_savepoint

_HOMES = {
    "penstock.api.aggregate_functions": ("AggregateFunction",),
    "penstock.api.aggregates": (
        "all",
        "any",
        "approx_count_distinct",
        "collect_list",
        "collect_set",
        "count",
        "count_distinct",
        "first",
        "last",
        "max",
        "max_by",
        "mean",
        "median",
        "min",
        "min_by",
        "quantile",
        "stddev",
        "sum",
        "top_n",
        "variance",
    ),
    "penstock.api.alignment": ("alignment",),
    "penstock.api.async_functions": ("AsyncFunction",),
    "penstock.api.backends": ("memory", "rocksdb"),
    "penstock.api.checkpointing": ("Checkpointing",),
    "penstock.api.connector": (
        "Committer",
        "End",
        "Found",
        "Pause",
        "Sink",
        "SinkWriter",
        "Source",
        "SourceReader",
        "SplitEnumerator",
        "SplitProgress",
        "UserCodeRaised",
        "WriterContext",
    ),
    "penstock.api.functions": (
        "FunctionContext",
        "KeyedBroadcastFunction",
        "KeyedCoFunction",
        "KeyedContext",
        "KeyedFunction",
        "ProcessFunction",
        "Timer",
        "Timers",
    ),
    "penstock.api.high_availability": ("ha_files", "zookeeper"),
    "penstock.api.hooks": ("CheckpointHook",),
    "penstock.api.metrics": ("Counter", "Gauge", "Histogram", "Metrics"),
    "penstock.api.other_windows": ("count_window", "global_window"),
    "penstock.api.pane_windows": ("cumulative", "sliding"),
    "penstock.api.patterns": ("AnyOf", "Pattern", "any_of", "pattern"),
    "penstock.api.restarts": ("exponential_delay", "failure_rate", "fixed_delay", "no_restart"),
    "penstock.api.restoring": ("Restore", "restore"),
    "penstock.api.state": (
        "AggregatingState",
        "BroadcastState",
        "ListState",
        "MapState",
        "RawKeyedState",
        "ReducingState",
        "ValueState",
        "ttl",
    ),
    "penstock.api.state_declarations": (
        "aggregating_state",
        "broadcast_state",
        "list_state",
        "map_state",
        "raw_keyed_state",
        "raw_split_list_state",
        "raw_union_list_state",
        "reducing_state",
        "split_list_state",
        "union_list_state",
        "value_state",
    ),
    "penstock.api.secrets": ("secret",),
    "penstock.api.streams.connected_stream": ("ConnectedKeyedStreams", "ConnectedStream"),
    "penstock.api.streams.data_stream": ("Stream",),
    "penstock.api.streams.keyed_stream": ("KeyedStream",),
    "penstock.api.streams.side_streams": ("Parts",),
    "penstock.api.streams.windowed_stream": ("WindowedStream",),
    "penstock.api.web": ("Web",),
    "penstock.api.windows": ("session", "tumbling"),
    "penstock.connectors": ("nexmark",),
    "penstock.connectors.collect_sink": ("collect",),
    "penstock.connectors.csv_sink": ("csv",),
    "penstock.connectors.json_sink": ("json",),
    "penstock.connectors.files": ("files",),
    "penstock.connectors.generated": ("generate",),
    "penstock.connectors.kafka.sink": ("kafka_sink",),
    "penstock.connectors.kafka.source": ("kafka",),
    "penstock.connectors.parquet": ("parquet",),
    "penstock.connectors.sockets": ("socket",),
    "penstock.connectors.table": ("table",),
    "penstock.core.errors": (
        "CorruptFile",
        "ExternalError",
        "HostError",
        "InvariantError",
        "JobCancelled",
        "JobFailed",
        "JobTakenOver",
        "PeerError",
        "RescaleFailed",
        "Retry",
        "SettingsError",
        "SnapshotFailed",
        "StorageError",
        "StreamError",
        "UsageError",
        "UserCodeError",
    ),
    "penstock.core.job.events": ("JobState",),
    "penstock.core.recovery.restore_plan": ("RestorePlan",),
    "penstock.core.views": ("CheckpointDetails",),
    "penstock.plan.picture": ("Explanation",),
    "penstock.runtime.log_lines": ("configure_logging",),
    "penstock.runtime.user_metrics": ("UserMetric",),
    "penstock.runtime.views": ("JobView",),
    "penstock.savepoints.catalog": ("EdgeInfo", "OperatorInfo", "StateInfo"),
    "penstock.settings": ("NetworkSettings", "SlotSettings"),
    "penstock.spark.data_sources": ("data_sink", "data_source"),
    "penstock.spark.environment": ("Environment",),
    "penstock.spark.job": ("Job",),
    "penstock.spark.live_state": ("LiveState",),
    "penstock.spark.nexmark_source": ("NexmarkBids",),
    "penstock.spark.savepoints": ("Savepoint", "SavepointWriter", "new_savepoint", "read_savepoint"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: a Spark worker that starts must not wait for the imports of all
    public names."""
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name, None) or importlib.import_module(f"{home}.{name}")
    globals()[name] = value
    return value


def _print_error(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    importlib.import_module("penstock.api.boundary").print_error(kind, error, trace)


# Set before any function of the package can be called with a wrong argument. The module that prints errors is imported
# when the first error is printed.
if sys.excepthook is sys.__excepthook__:
    sys.excepthook = _print_error
if "IPython" in sys.modules:
    importlib.import_module("penstock.api.boundary").shown_at_user_line()


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = [
    "AggregateFunction",
    "AggregatingState",
    "AnyOf",
    "AsyncFunction",
    "BroadcastState",
    "CheckpointDetails",
    "CheckpointHook",
    "Checkpointing",
    "Committer",
    "ConnectedKeyedStreams",
    "ConnectedStream",
    "CorruptFile",
    "Counter",
    "EdgeInfo",
    "End",
    "Environment",
    "Explanation",
    "ExternalError",
    "Found",
    "FunctionContext",
    "Gauge",
    "Histogram",
    "HostError",
    "InvariantError",
    "Job",
    "JobCancelled",
    "JobFailed",
    "JobState",
    "JobTakenOver",
    "JobView",
    "KeyedBroadcastFunction",
    "KeyedCoFunction",
    "KeyedContext",
    "KeyedFunction",
    "KeyedStream",
    "ListState",
    "LiveState",
    "MapState",
    "Metrics",
    "NetworkSettings",
    "NexmarkBids",
    "OperatorInfo",
    "Parts",
    "Pattern",
    "Pause",
    "PeerError",
    "ProcessFunction",
    "RawKeyedState",
    "ReducingState",
    "RescaleFailed",
    "Restore",
    "RestorePlan",
    "Retry",
    "Savepoint",
    "SavepointWriter",
    "SettingsError",
    "Sink",
    "SinkWriter",
    "SlotSettings",
    "SnapshotFailed",
    "Source",
    "SourceReader",
    "SplitEnumerator",
    "SplitProgress",
    "StateInfo",
    "StorageError",
    "Stream",
    "StreamError",
    "Timer",
    "Timers",
    "UsageError",
    "UserCodeError",
    "UserCodeRaised",
    "UserMetric",
    "ValueState",
    "Web",
    "WindowedStream",
    "WriterContext",
    "aggregating_state",
    "alignment",
    "all",
    "any",
    "any_of",
    "approx_count_distinct",
    "broadcast_state",
    "collect",
    "collect_list",
    "collect_set",
    "configure_logging",
    "count",
    "count_distinct",
    "count_window",
    "csv",
    "cumulative",
    "data_sink",
    "data_source",
    "exponential_delay",
    "failure_rate",
    "files",
    "first",
    "fixed_delay",
    "generate",
    "global_window",
    "ha_files",
    "json",
    "kafka",
    "kafka_sink",
    "last",
    "list_state",
    "map_state",
    "max",
    "max_by",
    "mean",
    "median",
    "memory",
    "min",
    "min_by",
    "new_savepoint",
    "nexmark",
    "no_restart",
    "parquet",
    "pattern",
    "quantile",
    "raw_keyed_state",
    "raw_split_list_state",
    "raw_union_list_state",
    "read_savepoint",
    "reducing_state",
    "restore",
    "rocksdb",
    "secret",
    "session",
    "sliding",
    "socket",
    "split_list_state",
    "stddev",
    "sum",
    "table",
    "top_n",
    "ttl",
    "tumbling",
    "union_list_state",
    "value_state",
    "variance",
    "zookeeper",
]
