"""Answers about changes of the parallelism."""

from __future__ import annotations

from typing import Any

from penstock.web.answers.asking import NOT_A_NUMBER, Asked, Document, Refused, quantile
from penstock.web.ids import public_id

_STATES = {"asked": "inProgress", "prepared": "inProgress", "changing": "inProgress", "completed": "completed"}


def config(asked: Asked) -> Document:
    """The settings of changes of the parallelism."""
    _ = asked.job
    return {
        "rescaleHistoryMax": 20,
        "schedulerExecutionMode": None,
        "submissionResourceWaitTimeoutInMillis": 0,
        "submissionResourceStabilizationTimeoutInMillis": 0,
        "slotIdleTimeoutInMillis": 0,
        "executingCooldownTimeoutInMillis": 0,
        "executingResourceStabilizationTimeoutInMillis": 0,
        "maximumDelayForTriggeringRescaleInMillis": 0,
        "rescaleOnFailedCheckpointCount": 0,
    }


def _all(job: Document) -> list[Document]:
    count = len(job["rescales"])
    return [_rescale(job, each, count - place) for place, each in enumerate(job["rescales"])]


def _rescale(job: Document, found: Document, number: int) -> Document:
    group = public_id("slots", job["job"])
    end = found["times"].get("completed", found["times"].get("failed"))
    stamps = [("asked", found["asked"]), *found["times"].items()]
    after = [when for _, when in stamps[1:]] + [job["now"] if end is None else end]
    return {
        "rescaleUuid": public_id("rescale", job["job"], str(found["asked"])),
        "resourceRequirementsUuid": public_id("requirements", job["job"], str(found["asked"])),
        "rescaleAttemptId": number,
        "vertices": {
            vertex["id"]: {
                "jobVertexId": vertex["id"],
                "jobVertexName": vertex["name"],
                "slotSharingGroupId": group,
                "slotSharingGroupName": "default",
                "desiredParallelism": _limited(vertex, found["after"]),
                "sufficientParallelism": 1,
                "preRescaleParallelism": _limited(vertex, found["before"]),
                "postRescaleParallelism": _limited(
                    vertex, found["after"] if found["state"] == "completed" else found["before"]
                ),
            }
            for vertex in job["vertices"]
        },
        "slots": {
            group: {
                "slotSharingGroupId": group,
                "slotSharingGroupName": "default",
                "desiredSlots": found["after"],
                "minimalRequiredSlots": 1,
                "preRescaleSlots": found["before"],
                "postRescaleSlots": found["after"] if found["state"] == "completed" else found["before"],
                "requestResourceProfile": {},
                "acquiredResourceProfile": {},
            }
        },
        "schedulerStates": [
            {
                "state": state,
                "enterTimestampInMillis": when,
                "leaveTimestampInMillis": left,
                "durationInMillis": max(0, left - when),
                "stringifiedException": found["text"] or None,
            }
            for (state, when), left in zip(stamps, after, strict=True)
        ],
        "startTimestampInMillis": found["asked"],
        "endTimestampInMillis": end,
        "terminalState": {"completed": "COMPLETED", "failed": "FAILED"}.get(found["state"]),
        "triggerCause": "UPDATE_REQUIREMENT",
        "terminatedReason": {"completed": "SUCCEEDED", "failed": "EXCEPTION_OCCURRED"}.get(found["state"]),
    }


def _limited(vertex: Document, parallelism: int) -> int:
    return parallelism if vertex["at_most"] is None else min(parallelism, int(vertex["at_most"]))


def _counts(job: Document) -> Document:
    states = [_STATES.get(each["state"], "failed") for each in job["rescales"]]
    return {
        "ignored": 0,
        "inProgress": states.count("inProgress"),
        "completed": states.count("completed"),
        "failed": states.count("failed"),
    }


def overview(asked: Asked) -> Document:
    """The newest changes."""
    job = asked.job
    found = _all(job)
    newest: dict[str, Any] = {
        name: next((each for each in found if each["terminalState"] == state), None)
        for name, state in (("completed", "COMPLETED"), ("failed", "FAILED"), ("ignored", "IGNORED"))
    }
    return {"rescalesCounts": _counts(job), "latest": newest}


def _durations(found: list[Document]) -> Document:
    took = sorted(
        each["endTimestampInMillis"] - each["startTimestampInMillis"]
        for each in found
        if each["endTimestampInMillis"] is not None
    )
    shares = (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99), ("p999", 0.999))
    if not took:
        return {"min": 0, "max": 0, "avg": 0, **dict.fromkeys((name for name, _ in shares), NOT_A_NUMBER)}
    middle = {name: quantile(took, share) for name, share in shares}
    return {"min": took[0], "max": took[-1], "avg": sum(took) // len(took), **middle}


def summary(asked: Asked) -> Document:
    """How long changes take."""
    found = _all(asked.job)
    by_state = {
        state: _durations([each for each in found if each["terminalState"] == state])
        for state in ("COMPLETED", "IGNORED", "FAILED")
    }
    return {
        "rescalesCounts": _counts(asked.job),
        "rescalesDurationStatsInMillis": _durations(found),
        "completedRescalesDurationStatsInMillis": by_state["COMPLETED"],
        "ignoredRescalesDurationStatsInMillis": by_state["IGNORED"],
        "failedRescalesDurationStatsInMillis": by_state["FAILED"],
    }


def history(asked: Asked) -> list[Document]:
    """All changes that are remembered, newest first."""
    return _all(asked.job)


def details(asked: Asked) -> Document:
    """One change."""
    for each in _all(asked.job):
        if each["rescaleUuid"] == asked.path["rescaleuuid"]:
            return each
    raise Refused(404, f"no rescale has the id {asked.path['rescaleuuid'][:64]}")
