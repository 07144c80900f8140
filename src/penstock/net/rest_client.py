"""Jobs of a driver elsewhere, by the REST interface of the driver's page.

The interface is that of Flink's monitoring API. This file turns its answers into the answers that a job gives over its
control socket, so that the commands show both alike.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any

from penstock.api.job_names import job_slug
from penstock.core.errors import NoAnswer, PeerError, UsageError
from penstock.core.ids import CheckpointId, Instant, VertexId
from penstock.core.recovery.metadata import SnapshotKind
from penstock.core.slowness import diagnosis, timeline
from penstock.core.views import (
    CheckpointDetails,
    CheckpointStatus,
    CheckpointTotals,
    Spread,
    SubtasksView,
    SubtaskView,
)

ANSWERED_WITHIN_S = 30.0
POLLED_EVERY_S = 0.3
LONGEST_ANSWER = 256 * 1024 * 1024

_KINDS = {"SAVEPOINT": SnapshotKind.SAVEPOINT}


class RestJobs:
    """The jobs of the driver whose page has the address `url`."""

    def __init__(self, url: str, token: str | None = None) -> None:
        parsed = urllib.parse.urlsplit(url)
        if parsed.scheme not in ("http", "https") or not parsed.hostname:
            raise UsageError(f"{url!r} is no address of a page", hint="write http://host:port")
        self._url = url.rstrip("/")
        self._token = token
        self._patience_s = ANSWERED_WITHIN_S

    # --- what commands ask ---------------------------------------------------------------

    def running(self) -> list[str]:
        """The ids of the jobs that the driver knows, also of those that have ended."""
        return [job["jid"] for job in self._overview()]

    def find(self, text: str) -> str:
        """The id of the job that `text` names: by its id, its name, or the beginning of either. A job that runs goes
        before jobs that have ended."""
        jobs = self._overview()
        wanted, named = text.lower(), job_slug(text) if any(c.isalnum() for c in text) else text
        for fits in (
            lambda job: wanted in (job["jid"], job["name"]),
            lambda job: job_slug(job["name"]) == named,
            lambda job: job["jid"].startswith(wanted) or job["name"].lower().startswith(wanted),
        ):
            matches = [job for job in jobs if fits(job)]
            alive = [job for job in matches if job["end-time"] < 0]
            matches = alive or matches
            if len(matches) == 1:
                return str(matches[0]["jid"])
            if matches:
                ids = ", ".join(f"{job['jid']} ({job['name']})" for job in matches)
                raise UsageError(f"{text!r} may be any of {ids}", hint="give the whole id of the job")
        known = ", ".join(job["name"] for job in jobs)
        raise UsageError(f"no job at {self._url} is called {text!r}", hint=f"jobs: {known}" if known else "no job runs")

    def call(
        self, job: str, command: str, *, heard_within_s: float = ANSWERED_WITHIN_S, **arguments: Any
    ) -> dict[str, Any]:
        """The answer to a command. The driver is waited for for `ANSWERED_WITHIN_S`, or less."""
        self._patience_s = min(heard_within_s, ANSWERED_WITHIN_S)
        known: dict[str, Callable[..., dict[str, Any]]] = {
            "view": self._view,
            "info": self._info,
            "exceptions": self._exceptions,
            "checkpoints": self._checkpoints,
            "logs": self._logs,
            "checkpoint": self._checkpoint,
            "savepoint": self._savepoint,
            "stop": self._stop,
            "rescale": self._rescale,
            "cancel": self._cancel,
        }
        if command not in known:
            raise UsageError(f"the command {command} cannot be sent to a driver elsewhere")
        return known[command](job, **arguments)

    # --- what is shown -------------------------------------------------------------------

    def _overview(self) -> list[dict[str, Any]]:
        return list(self._get("/jobs/overview")["jobs"])

    def _view(self, job: str) -> dict[str, Any]:
        details = self._get(f"/jobs/{job}")
        return self._summary(details, self._get(f"/jobs/{job}/checkpoints"))

    def _summary(self, details: Mapping[str, Any], checkpoints: Mapping[str, Any]) -> dict[str, Any]:
        counts, latest = checkpoints["counts"], checkpoints["latest"]["completed"]
        sources = _sources(details)
        entries = self._get(f"/jobs/{details['jid']}/exceptions?maxExceptions=1")["exceptionHistory"]["entries"]
        return {
            "id": details["jid"],
            "name": details["name"],
            "state": str(details["state"]).lower(),
            "slots": max((vertex["parallelism"] for vertex in details["vertices"]), default=0),
            "restarts": counts["restored"],
            "rows_read": sum(v["metrics"]["write-records"] for v in details["vertices"] if v["id"] in sources),
            "watermark_us": None,
            "checkpoints_completed": counts["completed"],
            "checkpoints_failed": counts["failed"],
            "last_checkpoint": latest["id"] if latest else None,
            "last_checkpoint_ms": latest["end_to_end_duration"] if latest else None,
            "last_failure": entries[0]["stacktrace"].splitlines()[0] if entries else None,
        }

    def _info(self, job: str) -> dict[str, Any]:
        details, checkpoints = self._get(f"/jobs/{job}"), self._get(f"/jobs/{job}/checkpoints")
        sources, tasks = _sources(details), {}
        for vertex in details["vertices"]:
            for one in self._get(f"/jobs/{job}/vertices/{vertex['id']}")["subtasks"]:
                totals = one["metrics"]
                tasks[f"{vertex['id']}[{one['subtask']}]"] = {
                    "rows_in": totals["write-records" if vertex["id"] in sources else "read-records"],
                    "rows_out": totals["write-records"],
                    "busy_ms": totals.get("accumulated-busy-time", 0),
                    "idle_ms": totals.get("accumulated-idle-time", 0),
                    "blocked_ms": totals.get("accumulated-backpressured-time", 0),
                }
        summary = self._summary(details, checkpoints)
        latest = checkpoints["latest"]["completed"]
        return {
            **summary,
            "rows_in": summary["rows_read"],
            "epoch": None,
            "slot_views": [],
            "spares": [],
            "stuck": [],
            "failures": self._exceptions(job)["exceptions"][::-1],
            "tasks": {name: {k: float(v) for k, v in values.items() if v != "NaN"} for name, values in tasks.items()},
            "checkpoints": {"latest_completed": {"triggered": latest["trigger_timestamp"]} if latest else None},
            "plan": _plan(details),
        }

    def _exceptions(self, job: str) -> dict[str, Any]:
        entries = self._get(f"/jobs/{job}/exceptions?maxExceptions=100")["exceptionHistory"]["entries"]
        return {
            "exceptions": [
                {
                    "when": entry["timestamp"],
                    "epoch": None,
                    "text": f"{entry['exceptionName']}: {entry['stacktrace'].splitlines()[0]}"
                    if entry["stacktrace"]
                    else entry["exceptionName"],
                    "operator": entry["taskName"],
                    "subtask": None,
                    "traceback": entry["stacktrace"],
                    "user_code": False,
                    "restart_in_ms": None,
                }
                for entry in entries
            ]
        }

    def _checkpoints(self, job: str, checkpoint: int | None = None) -> dict[str, Any]:
        if checkpoint is None:
            history = self._get(f"/jobs/{job}/checkpoints")["history"]
            return {"checkpoints": [_checkpoint_of(_details(one, ()), {}) for one in history]}
        one = self._get(f"/jobs/{job}/checkpoints/details/{checkpoint}")
        details = self._get(f"/jobs/{job}")
        names = {vertex["id"]: vertex["name"] for vertex in details["vertices"]}
        vertices = tuple(
            _vertex(
                names.get(vertex, vertex), self._get(f"/jobs/{job}/checkpoints/details/{checkpoint}/subtasks/{vertex}")
            )
            for vertex in one["tasks"]
        )
        inputs = {
            names[node["id"]]: [names[upstream["id"]] for upstream in node.get("inputs", ())]
            for node in details["plan"]["nodes"]
        }
        return {"checkpoints": [_checkpoint_of(_details(one, vertices), inputs)]}

    def _logs(self, job: str, slot: int | None = None, after: int = 0, lines: int = 200) -> dict[str, Any]:  # noqa: ARG002
        found: list[dict[str, Any]] = []
        managers = [each["id"] for each in self._get("/taskmanagers")["taskmanagers"]]
        for number, manager in enumerate(managers):
            if slot is None or slot == number:
                text = self._text(f"/taskmanagers/{urllib.parse.quote(manager, safe='')}/log")
                found += [{"text": line, "slot": number, "is_whole": True} for line in text.splitlines()]
        return {"lines": found[after:][-lines:], "next": len(found), "left_out": 0}

    # --- what is done --------------------------------------------------------------------

    def _checkpoint(self, job: str, *, full: bool = False) -> dict[str, Any]:
        body = {"checkpointType": "FULL" if full else "CONFIGURED"}
        done = self._asked(f"/jobs/{job}/checkpoints", body, f"/jobs/{job}/checkpoints")
        return {"checkpoint": done["checkpointId"]}

    def _savepoint(self, job: str, directory: str | None = None, *, native: bool = False) -> dict[str, Any]:
        body = {"formatType": "NATIVE" if native else "CANONICAL", "cancel-job": False}
        if directory is not None:
            body["target-directory"] = directory
        return {"savepoint": self._asked(f"/jobs/{job}/savepoints", body, f"/jobs/{job}/savepoints")["location"]}

    def _stop(
        self,
        job: str,
        directory: str | None = None,
        *,
        drain: bool = False,
        native: bool = False,
    ) -> dict[str, Any]:
        body: dict[str, Any] = {"drain": drain, "formatType": "NATIVE" if native else "CANONICAL"}
        if directory is not None:
            body["targetDirectory"] = directory
        return {"savepoint": self._asked(f"/jobs/{job}/stop", body, f"/jobs/{job}/savepoints")["location"]}

    def _rescale(self, job: str, parallelism: int) -> dict[str, Any]:
        path = f"/jobs/{job}/rescaling?parallelism={parallelism}"
        self._wait(f"/jobs/{job}/rescaling", self._request("PATCH", path, {})["request-id"])
        return {"slots": parallelism}

    def _cancel(self, job: str) -> dict[str, Any]:
        self._request("PATCH", f"/jobs/{job}?mode=cancel", {})
        return {}

    def _asked(self, path: str, body: Mapping[str, Any], status: str) -> dict[str, Any]:
        return self._wait(status, self._request("POST", path, body)["request-id"])

    def _wait(self, path: str, request: str) -> dict[str, Any]:
        """Poll until what was asked for is over."""
        while (answer := self._get(f"{path}/{request}"))["status"]["id"] != "COMPLETED":
            time.sleep(POLLED_EVERY_S)
        operation = answer["operation"] or {}
        if "failure-cause" in operation:
            cause = operation["failure-cause"]
            raise PeerError(str(cause.get("stack-trace") or cause.get("class")).strip())
        return dict(operation)

    # --- HTTP ----------------------------------------------------------------------------

    def _get(self, path: str) -> Any:
        return self._request("GET", path, None)

    def _request(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        text = self._text(path, method=method, body=body)
        try:
            return json.loads(text)
        except ValueError as error:
            raise PeerError(f"{self._url} is no page of Penstock: its answer to {path} is no JSON") from error

    def _text(self, path: str, *, method: str = "GET", body: Mapping[str, Any] | None = None) -> str:
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        data = None if body is None else json.dumps(body).encode()
        # Only http and https get here: the constructor refuses other addresses.
        request = urllib.request.Request(f"{self._url}{path}", data=data, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=self._patience_s) as answer:
                return str(answer.read(LONGEST_ANSWER).decode("utf-8", "replace"))
        except urllib.error.HTTPError as error:
            raise _refused(self._url, error) from error
        except TimeoutError as error:
            raise NoAnswer(f"{self._url} does not answer") from error
        except OSError as error:
            reason = getattr(error, "reason", error)
            raise PeerError(
                f"{self._url} cannot be reached: {reason}",
                hint="is the driver up, and is its page bound to this address?",
            ) from error


def _refused(url: str, error: urllib.error.HTTPError) -> PeerError:
    text = error.read(65_536).decode("utf-8", "replace")
    try:
        said = str(json.loads(text)["errors"][-1])
    except (ValueError, KeyError, IndexError, TypeError):
        said = error.reason
    if error.code in (401, 403):
        return PeerError(f"{url} refused the request: {said}", hint="give the token of the driver with --token-file")
    return PeerError(f"{url} answered {error.code}: {said.splitlines()[0] if said else ''}")


def _sources(details: Mapping[str, Any]) -> set[str]:
    return {node["id"] for node in details["plan"]["nodes"] if not node.get("inputs")}


def _plan(details: Mapping[str, Any]) -> dict[str, Any]:
    sources = _sources(details)
    return {
        "parallelism": max((vertex["parallelism"] for vertex in details["vertices"]), default=0),
        "max_parallelism": details["maxParallelism"],
        "vertices": [
            {
                "id": vertex["id"],
                "name": vertex["name"],
                "parallelism": vertex["parallelism"],
                "is_source": vertex["id"] in sources,
                "operators": [],
            }
            for vertex in details["vertices"]
        ],
        "edges": [
            {
                "from": upstream["id"],
                "to": node["id"],
                "partitioning": str(upstream["ship_strategy"]).lower(),
                "keys": [],
            }
            for node in details["plan"]["nodes"]
            for upstream in node.get("inputs", ())
        ],
    }


def _checkpoint_of(details: CheckpointDetails, inputs: Mapping[str, list[str]]) -> dict[str, Any]:
    import msgspec

    known = {name: getattr(details, name) for name in details.__struct_fields__ if name not in ("failure", "kind")}
    return {
        **msgspec.to_builtins(known),
        "kind": details.kind.value,
        "failure": None,
        "diagnosis": diagnosis(details, inputs),
        "timeline": msgspec.to_builtins(timeline(details)),
    }


def _details(one: Mapping[str, Any], vertices: tuple[SubtasksView, ...]) -> CheckpointDetails:
    duration = max(0, one["end_to_end_duration"])
    return CheckpointDetails(
        checkpoint=CheckpointId(one["id"]),
        kind=_KINDS.get(one["checkpoint_type"], SnapshotKind.CHECKPOINT),
        status=CheckpointStatus(one["status"]),
        triggered=Instant(one["trigger_timestamp"]),
        queued_ms=0,
        duration_ms=duration,
        canonical=one.get("savepointFormat") == "CANONICAL",
        totals=CheckpointTotals(
            num_subtasks=one["num_subtasks"],
            num_acknowledged=one["num_acknowledged_subtasks"],
            checkpointed_bytes=one["checkpointed_size"],
            state_bytes=one["state_size"],
            processed_bytes=one["processed_data"],
            persisted_bytes=one["persisted_data"],
            unaligned=one["checkpoint_type"] == "UNALIGNED_CHECKPOINT",
        ),
        vertices=vertices,
        path=one.get("external_path"),
        discarded=bool(one.get("discarded", False)),
        failure_text=one.get("failure_message") or "",
    )


def _vertex(name: str, one: Mapping[str, Any]) -> SubtasksView:
    none = Spread()
    return SubtasksView(
        vertex=VertexId(name),
        status=CheckpointStatus(one["status"]),
        duration_ms=max(0, one["end_to_end_duration"]),
        totals=CheckpointTotals(),
        durations_ms=none,
        checkpointed_bytes=none,
        state_bytes=none,
        processed_bytes=none,
        persisted_bytes=none,
        sync_ms=none,
        async_ms=none,
        alignment_ms=none,
        start_delay_ms=none,
        subtasks=tuple(_subtask(subtask) for subtask in one["subtasks"]),
    )


def _subtask(one: Mapping[str, Any]) -> SubtaskView:
    if one["status"] != "completed":
        return SubtaskView(subtask=one["index"], acknowledged=None)
    alignment = one["alignment"]
    return SubtaskView(
        subtask=one["index"],
        acknowledged=Instant(one["ack_timestamp"]),
        duration_ms=one["end_to_end_duration"],
        checkpointed_bytes=one["checkpointed_size"],
        state_bytes=one["state_size"],
        processed_bytes=alignment["processed"],
        persisted_bytes=alignment["persisted"],
        sync_ms=one["checkpoint"]["sync"],
        async_ms=one["checkpoint"]["async"],
        alignment_ms=alignment["duration"],
        start_delay_ms=one["start_delay"],
        unaligned=one["unaligned_checkpoint"],
        aborted=one["aborted"],
    )
