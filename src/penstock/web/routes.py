"""The one list of all addresses: what is answered, what a request may say, and what changes something.

The server finds the answer to a request in this list, and the OpenAPI document is made from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from penstock.web.acting import CHECKPOINTS, DISPOSAL, RESCALING, SAVEPOINTS, Acting, requirements
from penstock.web.answers import checkpoints, cluster, jobs, metrics, own, rescales, slots, stored_state, vertices
from penstock.web.answers.asking import Asked, Refused

Answer = Callable[[Asked], Any]


class Content(Enum):
    """What an answer consists of."""

    JSON = "application/json"
    TEXT = "text/plain"
    HTML = "text/html"
    STREAM = "text/event-stream"
    METRICS = "text/plain; version=0.0.4"


@dataclass(frozen=True, kw_only=True)
class Route:
    """One address."""

    method: str
    path: str
    """Parameters begin with a colon: `/jobs/:jobid`."""
    answer: Answer
    status: int = 200
    content: Content = Content.JSON
    query: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The JSON schema of each parameter of the query."""
    body: Mapping[str, Any] | None = None
    """The JSON schema of the body."""
    changes: bool = False
    """Whether the request changes something."""
    is_flinks: bool = True
    """Whether the address is one of Flink's interface, and so also stands below `/v1`."""
    refusals: tuple[int, ...] = ()
    """Further statuses of refusals."""
    blocks: bool = False
    """Whether the answer is read from files, and so must be given beside the server's loop."""
    by: str | None = None
    """The name of the part of the application that answers; None: `answer` does."""

    @property
    def summary(self) -> str:
        """What is answered, in a sentence."""
        return (self.answer.__doc__ or "").split("\n")[0]

    @property
    def parameters(self) -> tuple[str, ...]:
        """The parameters of the path."""
        return tuple(part[1:] for part in self.path.split("/") if part.startswith(":"))


_TEXT = {"type": "string"}
_WHOLE = {"type": "integer", "minimum": 0, "maximum": 1_000_000}
_TRIGGER = {"type": "string", "pattern": "^[0-9a-f]{32}$"}
_FORMAT = {"type": "string", "enum": ["CANONICAL", "NATIVE"]}
_FOLDER = {"type": "string"}
_FLAG = {"type": "boolean"}
_GET = {"get": _TEXT}
_AGG = {"get": _TEXT, "agg": _TEXT}


def _body(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def _get(path: str, answer: Answer, **more: Any) -> Route:
    return Route(method="GET", path=path, answer=answer, **more)


def _refusing(method: str, path: str, answer: Answer, status: int) -> Route:
    return Route(method=method, path=path, answer=answer, refusals=(status,), changes=True)


JOB, VERTEX = "/jobs/:jobid", "/jobs/:jobid/vertices/:vertexid"
SUBTASK = f"{VERTEX}/subtasks/:subtaskindex"
SLOT = "/taskmanagers/:taskmanagerid"


def _read_routes() -> list[Route]:
    """What Flink's interface answers."""
    return [
        _get("/config", cluster.config),
        _get("/overview", cluster.overview),
        _get("/applications/overview", cluster.applications),
        _get("/applications/:jobid", cluster.application),
        _get("/applications/:jobid/exceptions", cluster.application_exceptions),
        _get("/applications/:jobid/jobmanager/config", jobs.manager_config),
        _get("/jobs", jobs.jobs),
        _get("/jobs/overview", jobs.overview),
        _get("/jobs/metrics", metrics.all_jobs, query={**_AGG, "jobs": _TEXT}),
        _get(JOB, jobs.job),
        _get(f"{JOB}/plan", jobs.plan),
        _get(f"{JOB}/config", jobs.config),
        _get(f"{JOB}/status", jobs.status),
        _get(f"{JOB}/exceptions", jobs.exceptions, query={"maxExceptions": _WHOLE, "failureLabelFilter": _TEXT}),
        _get(f"{JOB}/execution-result", jobs.execution_result),
        _get(f"{JOB}/accumulators", jobs.accumulators, query={"includeSerializedValue": _TEXT}),
        _get(f"{JOB}/metrics", metrics.job_metrics, query=_GET),
        _get(f"{JOB}/jobmanager/config", jobs.manager_config),
        _get(f"{JOB}/jobmanager/environment", jobs.manager_environment),
        _get(f"{JOB}/checkpoints", checkpoints.checkpoints),
        _get(f"{JOB}/checkpoints/config", checkpoints.config),
        _get(f"{JOB}/checkpoints/details/:checkpointid", checkpoints.details),
        _get(f"{JOB}/checkpoints/details/:checkpointid/subtasks/:vertexid", checkpoints.subtasks),
        _get(f"{JOB}/resource-requirements", requirements),
        _get(f"{JOB}/rescales/config", rescales.config),
        _get(f"{JOB}/rescales/overview", rescales.overview),
        _get(f"{JOB}/rescales/summary", rescales.summary),
        _get(f"{JOB}/rescales/history", rescales.history),
        _get(f"{JOB}/rescales/details/:rescaleuuid", rescales.details),
        _get(VERTEX, vertices.vertex),
        _get(f"{VERTEX}/subtasktimes", vertices.times),
        _get(f"{VERTEX}/taskmanagers", vertices.taskmanagers),
        _get(f"{VERTEX}/backpressure", vertices.backpressure),
        _get(f"{VERTEX}/watermarks", vertices.watermarks),
        _get(f"{VERTEX}/accumulators", vertices.accumulators),
        _get(f"{VERTEX}/flamegraph", vertices.flamegraph, query={"type": _TEXT, "subtaskindex": _WHOLE}),
        _get(f"{VERTEX}/metrics", metrics.vertex_metrics, query=_GET),
        _get(f"{VERTEX}/jm-operator-metrics", metrics.operator_metrics, query=_GET),
        _get(f"{VERTEX}/subtasks/accumulators", vertices.subtask_accumulators),
        _get(f"{VERTEX}/subtasks/metrics", metrics.all_subtasks, query={**_AGG, "subtasks": _TEXT}),
        _get(SUBTASK, vertices.subtask),
        _get(f"{SUBTASK}/metrics", metrics.subtask_metrics, query=_GET),
        _get(f"{SUBTASK}/attempts/:attempt", vertices.attempt),
        _get(f"{SUBTASK}/attempts/:attempt/accumulators", vertices.attempt_accumulators),
    ]


def _process_routes() -> list[Route]:
    """What Flink's interface answers about slots and about the driver."""
    return [
        _get("/taskmanagers", slots.taskmanagers),
        _get("/taskmanagers/metrics", metrics.all_slots, query={**_AGG, "taskmanagers": _TEXT}),
        _get(SLOT, slots.taskmanager),
        _get(f"{SLOT}/metrics", metrics.slot_metrics, query=_GET),
        _get(f"{SLOT}/thread-dump", slots.slot_threads),
        _get(f"{SLOT}/profiler", slots.profiles),
        _get(f"{SLOT}/logs", slots.slot_logs),
        _get(f"{SLOT}/logs/:logname", slots.slot_log, content=Content.TEXT),
        _get(f"{SLOT}/log", slots.slot_log, content=Content.TEXT),
        _get(f"{SLOT}/stdout", slots.slot_stdout, content=Content.TEXT),
        _get("/jobmanager/config", slots.driver_config),
        _get("/jobmanager/environment", slots.driver_environment),
        _get("/jobmanager/metrics", metrics.driver_metrics, query=_GET),
        _get("/jobmanager/thread-dump", slots.driver_threads),
        _get("/jobmanager/profiler", slots.profiles),
        _get("/jobmanager/logs", slots.driver_logs),
        _get("/jobmanager/logs/:logname", slots.driver_log, content=Content.TEXT),
        _get("/jobmanager/log", slots.driver_log, content=Content.TEXT),
        _get("/jobmanager/stdout", slots.driver_stdout, content=Content.TEXT),
        _get("/datasets", cluster.datasets),
        _get("/jars", cluster.jars),
    ]


def _own_routes() -> list[Route]:
    """What only Penstock answers."""
    return [
        _get("/penstock/jobs", own.jobs, is_flinks=False),
        _get("/penstock/jobs/:jobid", own.job, query={"details": _TEXT}, is_flinks=False),
        _get("/penstock/checkpoints/:jobid/:checkpointid", own.checkpoint, is_flinks=False),
        _get("/penstock/history/:jobid", own.history, is_flinks=False),
        _get("/penstock/state/:jobid", own.state, is_flinks=False),
        _get(
            "/penstock/state/:jobid/:operatorid",
            stored_state.states,
            blocks=True,
            refusals=(409,),
            is_flinks=False,
        ),
        _get(
            "/penstock/state/:jobid/:operatorid/:state",
            stored_state.rows,
            query={"key": _TEXT},
            blocks=True,
            refusals=(409,),
            is_flinks=False,
        ),
        _get(
            "/penstock/stream",
            own.stream,
            query={"job": _TEXT},
            content=Content.STREAM,
            by="stream",
            is_flinks=False,
        ),
        _get("/openapi.json", own.description, by="description", is_flinks=False),
        _get("/penstock/login", own.login, content=Content.HTML, by="login", is_flinks=False),
        Route(
            method="POST",
            path="/penstock/login",
            answer=own.login,
            status=303,
            content=Content.HTML,
            by="login",
            is_flinks=False,
        ),
    ]


def _action_routes(acting: Acting) -> list[Route]:
    """What changes something, and how it goes."""
    savepoint = _body(
        **{"target-directory": _FOLDER, "cancel-job": _FLAG, "formatType": _FORMAT, "triggerId": _TRIGGER}
    )
    stop = _body(targetDirectory=_FOLDER, drain=_FLAG, formatType=_FORMAT, triggerId=_TRIGGER)
    kinds = {"type": "string", "enum": ["CONFIGURED", "FULL", "INCREMENTAL"]}
    changing: dict[str, Any] = {"changes": True, "status": 202}
    return [
        Route(
            method="POST",
            path=f"{JOB}/checkpoints",
            answer=acting.checkpoint,
            body=_body(checkpointType=kinds, triggerId=_TRIGGER),
            refusals=(409, 503),
            **changing,
        ),
        _get(f"{JOB}/checkpoints/:triggerid", acting.status(CHECKPOINTS)),
        Route(
            method="POST",
            path=f"{JOB}/savepoints",
            answer=acting.savepoint,
            body=savepoint,
            refusals=(403, 409, 503),
            **changing,
        ),
        _get(f"{JOB}/savepoints/:triggerid", acting.status(SAVEPOINTS)),
        Route(
            method="POST",
            path=f"{JOB}/stop",
            answer=acting.stop,
            body=stop,
            refusals=(403, 409, 503),
            **changing,
        ),
        Route(
            method="POST",
            path="/savepoint-disposal",
            answer=acting.dispose,
            changes=True,
            body=_body(**{"savepoint-path": _FOLDER, "triggerId": _TRIGGER}),
            refusals=(403, 503),
        ),
        _get("/savepoint-disposal/:triggerid", acting.status(DISPOSAL)),
    ]


def _change_routes(acting: Acting) -> list[Route]:
    """What ends a job or changes its parallelism, and what is always refused."""
    changing: dict[str, Any] = {"changes": True, "status": 202}
    mode = {"mode": {"type": "string", "enum": ["cancel", "stop"]}}
    bounds = _body(parallelism=_body(lowerBound=_WHOLE, upperBound=_WHOLE))
    return [
        Route(method="PATCH", path=JOB, answer=acting.cancel, query=mode, refusals=(308, 409), **changing),
        _get(f"{JOB}/yarn-cancel", acting.cancel, refusals=(308, 403, 409), **changing),
        _get(f"{JOB}/yarn-stop", acting.stop_by_get, refusals=(403, 409, 503), **changing),
        Route(method="POST", path="/applications/:jobid/cancel", answer=acting.cancel, refusals=(308, 409), **changing),
        Route(method="PATCH", path=f"{JOB}/clientHeartbeat", answer=cluster.heartbeat, **changing),
        Route(
            method="PATCH",
            path=f"{JOB}/rescaling",
            answer=acting.rescale,
            changes=True,
            query={"parallelism": {"type": "integer", "minimum": 1, "maximum": 32_768}},
            refusals=(409, 503),
        ),
        _get(f"{JOB}/rescaling/:triggerid", acting.status(RESCALING)),
        Route(
            method="PUT",
            path=f"{JOB}/resource-requirements",
            answer=acting.require,
            changes=True,
            body={"type": "object", "additionalProperties": bounds},
            refusals=(409, 503),
        ),
        _refusing("DELETE", "/cluster", cluster.no_shutdown, 403),
        _refusing("POST", "/jobs", cluster.no_jars, 501),
        _refusing("POST", "/jars/upload", cluster.no_jars, 501),
        _refusing("POST", "/jars/:jarid/run", cluster.no_jars, 501),
        _refusing("POST", "/jars/:jarid/plan", cluster.no_jars, 501),
        _refusing("DELETE", "/jars/:jarid", cluster.no_jars, 501),
    ]


def all_routes(acting: Acting) -> list[Route]:
    """All addresses that are answered from documents."""
    return [
        *_read_routes(),
        *_process_routes(),
        *_own_routes(),
        *_action_routes(acting),
        *_change_routes(acting),
    ]


def further_route(path: str) -> Route:
    """An address that another part of Penstock answers."""
    return _get(path, own.metrics, content=Content.METRICS, by="further", is_flinks=False)


@dataclass(frozen=True, slots=True)
class Found:
    """The route of a request, and the parameters of its path."""

    route: Route
    path: dict[str, str]


class Table:
    """Finds the route of a request."""

    def __init__(self, routes: list[Route]) -> None:
        self.routes = routes
        self._by_length: dict[int, list[tuple[tuple[str, ...], Route]]] = {}
        for route in routes:
            parts = tuple(route.path.strip("/").split("/"))
            self._by_length.setdefault(len(parts), []).append((parts, route))
        for found in self._by_length.values():
            # A word in a path is more exact than a parameter.
            found.sort(key=lambda each: [part.startswith(":") for part in each[0]])

    def find(self, method: str, path: str) -> Found:
        """The route; raises `Refused` if there is none."""
        parts = tuple(path.strip("/").split("/"))
        is_first = parts[0] == "v1"
        if is_first:
            parts = parts[1:]
        allowed: dict[str, None] = {}
        for wanted, route in self._by_length.get(len(parts), ()):
            if is_first and not route.is_flinks:
                continue
            if all(word.startswith(":") or word == part for word, part in zip(wanted, parts, strict=True)):
                if route.method == method or (method == "HEAD" and route.method == "GET"):
                    named = {w[1:]: p for w, p in zip(wanted, parts, strict=True) if w.startswith(":")}
                    return Found(route, named)
                allowed[route.method] = None
        if allowed:
            raise NotAllowed(tuple(allowed))
        raise Refused(404, f"Not found: {path[:200]}")


class NotAllowed(Refused):
    """The path is known, and the method is not."""

    def __init__(self, methods: tuple[str, ...]) -> None:
        super().__init__(405, f"This address answers {', '.join(methods)}.")
        self.methods = methods
