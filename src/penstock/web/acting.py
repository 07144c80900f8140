"""Requests that change something: what they ask for, and the action that follows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from penstock.web import states
from penstock.web.actions import Actions
from penstock.web.answers.asking import Asked, Document, Refused
from penstock.web.folders import allowed_place
from penstock.web.savepoint_disposal import dispose
from penstock.web.watched_jobs import Driven, ShownJob

SAVEPOINTS, CHECKPOINTS, DISPOSAL, RESCALING = "savepoints", "checkpoints", "savepoint-disposal", "rescaling"


class Acting:
    """Begins actions. The documents of the jobs say what can be done."""

    def __init__(
        self, actions: Actions, driven: Callable[[str], ShownJob | None], folders: Callable[[], tuple[str, ...]]
    ) -> None:
        """`folders` says in which folders savepoints of any job may be deleted."""
        self._actions = actions
        self._driven = driven
        self._folders = folders

    # --- what is asked for ---------------------------------------------------------------

    def checkpoint(self, asked: Asked) -> Document:
        """Take a checkpoint."""
        shown = self._live(asked)
        kind = _choice(asked, "checkpointType", ("CONFIGURED", "FULL", "INCREMENTAL"), "CONFIGURED")
        driven = shown.driven
        return self._begin(asked, CHECKPOINTS, lambda: {"checkpointId": driven.checkpoint(full=kind == "FULL")})

    def savepoint(self, asked: Asked) -> Document:
        """Take a savepoint, and perhaps end the job with it."""
        shown = self._live(asked)
        target = self._target(asked, shown, "target-directory")
        native = _choice(asked, "formatType", ("CANONICAL", "NATIVE"), "CANONICAL") == "NATIVE"
        driven = shown.driven
        if _flag(asked, "cancel-job"):
            return self._begin(asked, SAVEPOINTS, lambda: _stopped(driven, target, drain=False, native=native))
        return self._begin(asked, SAVEPOINTS, lambda: {"location": driven.savepoint(target, native=native)})

    def stop(self, asked: Asked) -> Document:
        """End the job with a savepoint."""
        shown = self._live(asked)
        target = self._target(asked, shown, "targetDirectory")
        native = _choice(asked, "formatType", ("CANONICAL", "NATIVE"), "CANONICAL") == "NATIVE"
        drain, driven = _flag(asked, "drain"), shown.driven
        return self._begin(asked, SAVEPOINTS, lambda: _stopped(driven, target, drain=drain, native=native))

    def cancel(self, asked: Asked) -> Document:
        """End the job at once."""
        mode = asked.query.get("mode", "cancel")
        if mode == "stop":
            raise Refused(308, f"use POST /jobs/{asked.path['jobid']}/stop to stop a job with a savepoint")
        if mode != "cancel":
            raise Refused(400, f'Cannot resolve query parameter (mode) from value "{mode}".')
        state = asked.job["flink_state"]
        if state in ("CANCELLING", "CANCELED"):
            return {}
        if state in states.ENDED:
            raise Refused(
                409, f"Job cancellation failed because the job has already reached another terminal state ({state})."
            )
        shown = self._driven(asked.job["id"])
        if shown is not None:
            shown.driven.cancel()
        return {}

    def stop_by_get(self, asked: Asked) -> Document:
        """End the job with a savepoint in its own folder."""
        self.stop(asked)
        return {}

    def rescale(self, asked: Asked) -> Document:
        """Change the parallelism."""
        text = asked.query.get("parallelism", "")
        if not (text.isascii() and text.isdigit() and len(text) <= 9 and int(text) >= 1):
            raise Refused(400, f'Cannot resolve query parameter (parallelism) from value "{text}".')
        return self._rescale(asked, int(text))

    def _rescale(self, asked: Asked, parallelism: int) -> Document:
        shown, most = self._live(asked), asked.job["max_parallelism"]
        if parallelism > most > 0:
            raise Refused(400, f"the parallelism {parallelism} is higher than {most}, the job's max_parallelism")
        driven = shown.driven

        def call() -> Document:
            driven.rescale(parallelism)
            return {}

        begun = self._begin(asked, RESCALING, call)
        # Clients that know Flink's old interface look for this name.
        return {**begun, "triggerid": begun["request-id"]}

    def require(self, asked: Asked) -> Document:
        """Change the parallelism, as bounds for each vertex."""
        job = asked.job
        wanted = required_parallelism(job, asked.body)
        if wanted is not None:
            self._rescale(asked, wanted)
        return {}

    def dispose(self, asked: Asked) -> Document:
        """Delete a savepoint."""
        place = allowed_place(asked.body.get("savepoint-path"), self._folders())
        return self._actions.begin(DISPOSAL, "", lambda: dispose(place), trigger=asked.body.get("triggerId"))

    def status(self, kind: str) -> Callable[[Asked], Document]:
        """The answer about an action of this kind."""

        def told(asked: Asked) -> Document:
            """How an action goes."""
            job = asked.job["id"] if "jobid" in asked.path else ""
            return self._actions.status(kind, job, asked.path["triggerid"])

        return told

    # --- parts ---------------------------------------------------------------------------

    def _begin(self, asked: Asked, kind: str, call: Callable[[], Document]) -> Document:
        return self._actions.begin(kind, asked.job["id"], call, trigger=asked.body.get("triggerId"))

    def _live(self, asked: Asked) -> ShownJob:
        """The job that the path names, if something can be done with it."""
        job = asked.job
        shown = self._driven(job["id"])
        if shown is None or job["flink_state"] in states.ENDED:
            raise Refused(409, f"job {job['name']!r} has ended: {job['flink_state']}")
        return shown

    def _target(self, asked: Asked, shown: ShownJob, name: str) -> str | None:
        given = asked.body.get(name)
        if given is None:
            if not asked.job["settings"].get("penstock-checkpoint-directory"):
                raise Refused(
                    400,
                    f"{name} is missing, and the job has no checkpoint directory",
                    f"give a {name} below a folder that the program allows",
                )
            return None
        return allowed_place(given, shown.folders)


def _stopped(driven: Driven, target: str | None, *, drain: bool, native: bool) -> Document:
    return {"location": driven.stop(savepoint=target, drain=drain, native=native)}


def _choice(asked: Asked, name: str, values: tuple[str, ...], default: str) -> str:
    given = asked.body.get(name)
    if given is None:
        return default
    if given not in values:
        raise Refused(400, f"Request did not match expected format: {name} must be one of {', '.join(values)}.")
    return str(given)


def _flag(asked: Asked, name: str) -> bool:
    given = asked.body.get(name)
    if given is None:
        return False
    if not isinstance(given, bool):
        raise Refused(400, f"Request did not match expected format: {name} must be true or false.")
    return given


# --- parallelism as bounds per vertex -----------------------------------------------------


def requirements(asked: Asked) -> Document:
    """The bounds of the parallelism of each vertex. The upper bound is the parallelism that the vertex has."""
    return {
        vertex["id"]: {"parallelism": {"lowerBound": 1, "upperBound": vertex["parallelism"]}}
        for vertex in asked.job["vertices"]
    }


def required_parallelism(job: Document, body: Mapping[str, Any]) -> int | None:
    """The parallelism of the job that these bounds ask for; None if it is the parallelism that the job has.

    All vertices of a job have one parallelism, except vertices that are limited to fewer subtasks. So the vertices
    whose upper bound differs from what they have decide, and the highest of their upper bounds counts.
    """
    vertices = {vertex["id"]: vertex for vertex in job["vertices"]}
    problems = [f"vertex {key} is missing" for key in vertices if key not in body]
    problems += [f"the job has no vertex {str(key)[:64]}" for key in body if key not in vertices]
    changed: list[int] = []
    for key, vertex in vertices.items():
        if key not in body:
            continue
        bounds = body[key].get("parallelism") if isinstance(body[key], dict) else None
        lower = bounds.get("lowerBound") if isinstance(bounds, dict) else None
        upper = bounds.get("upperBound") if isinstance(bounds, dict) else None
        if not _is_whole(lower) or not _is_whole(upper):
            raise Refused(400, "Request did not match expected format JobResourceRequirementsBody.")
        assert isinstance(lower, int)
        assert isinstance(upper, int)
        name = vertex["name"]
        if lower < 1 or upper < 1:
            problems.append(f"vertex {name}: bounds must be 1 at least")
        elif lower > upper:
            problems.append(f"vertex {name}: the lower bound {lower} is above the upper bound {upper}")
        elif upper > vertex["max_parallelism"]:
            problems.append(f"vertex {name}: {upper} is above the maximum parallelism {vertex['max_parallelism']}")
        elif upper != vertex["parallelism"]:
            if vertex["at_most"] is not None and upper > vertex["at_most"]:
                problems.append(f"vertex {name} can have {vertex['at_most']} subtasks at most")
            changed.append(upper)
    if problems:
        raise Refused(400, "; ".join(problems))
    return max(changed) if changed else None


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
