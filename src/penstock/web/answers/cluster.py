"""Answers about the whole driver: its settings, the number of slots and jobs, applications."""

from __future__ import annotations

from penstock.web import states
from penstock.web.answers.asking import Asked, Document, Refused, duration, ms
from penstock.web.answers.jobs import overview_entry

FLINK_VERSION = "2.3.0"
"""The version of Flink whose interface this is. Some clients choose by it what they ask for."""
REFRESH_MS = 3_000


def config(asked: Asked) -> Document:
    """What Flink's page asks for first."""
    return {
        "refresh-interval": REFRESH_MS,
        "timezone-name": "Coordinated Universal Time",
        "timezone-offset": 0,
        "flink-version": FLINK_VERSION,
        "flink-revision": "penstock @ 1970-01-01T00:00:00Z",
        "features": {"web-submit": False, "web-cancel": True, "web-rescale": True, "web-history": False},
        "penstock-version": asked.about["version"],
    }


def overview(asked: Asked) -> Document:
    """Slots and jobs in numbers."""
    jobs = list(asked.documents.values())
    live = [job for job in jobs if job["flink_state"] not in states.ENDED]
    slots = [slot for job in live for slot in job["slots"]]
    by_state = [job["flink_state"] for job in jobs]
    return {
        "taskmanagers": len(slots),
        "slots-total": len(slots),
        "slots-available": sum(slot["spare"] for slot in slots),
        "jobs-running": len(live),
        "jobs-finished": by_state.count("FINISHED"),
        "jobs-cancelled": by_state.count("CANCELED"),
        "jobs-failed": by_state.count("FAILED"),
        "flink-version": FLINK_VERSION,
        "flink-commit": "penstock",
    }


# --- applications: one per job --------------------------------------------------------------


def _status(job: Document) -> str:
    state: str = job["flink_state"]
    return {
        "CANCELLING": "CANCELING",
        "RESTARTING": "RUNNING",
        "INITIALIZING": "RUNNING",
        "RECONCILING": "CREATED",
        "SUSPENDED": "RUNNING",
    }.get(state, state)


def _application(job: Document) -> Document:
    return {
        "id": job["id"],
        "name": job["name"],
        "start-time": job["started"],
        "end-time": ms(job["ended"]),
        "duration": duration(job["started"], job["ended"], job["now"]),
        "status": _status(job),
    }


def applications(asked: Asked) -> Document:
    """One application per job."""
    return {
        "applications": [{**_application(job), "jobs": {job["flink_state"]: 1}} for job in asked.documents.values()]
    }


def application(asked: Asked) -> Document:
    """The application of a job."""
    job = asked.job
    stamps = dict.fromkeys(("CREATED", "RUNNING", "FAILING", "FAILED", "CANCELING", "CANCELED", "FINISHED"), 0)
    stamps["CREATED"] = job["started"]
    stamps["RUNNING"] = job["timestamps"].get("running", 0)
    if job["ended"] is not None and _status(job) in stamps:
        stamps[_status(job)] = job["ended"]
    return {**_application(job), "timestamps": stamps, "jobs": [overview_entry(job)]}


def application_exceptions(asked: Asked) -> Document:
    """The failures of the application's job."""
    job = asked.job
    return {
        "exceptionHistory": {
            "entries": [
                {
                    "exceptionName": failure["text"].split(":")[0],
                    "stacktrace": failure["traceback"] or failure["text"],
                    "timestamp": failure["when"],
                    "jobId": job["id"],
                }
                for failure in job["failures"]
            ]
        }
    }


# --- things of Flink's that this server does not have ---------------------------------------


def jars(asked: Asked) -> Document:
    """No jars."""
    return {"address": asked.about["address"], "files": []}


def no_jars(_asked: Asked) -> Document:
    """Everything that is done with jars and job graphs."""
    raise Refused(501, "This server runs Penstock jobs, not jars: start a job from its Python program.")


def no_shutdown(_asked: Asked) -> Document:
    """The server ends with its program."""
    raise Refused(403, "This server ends with the program that it shows; end the program instead.")


def datasets(_asked: Asked) -> Document:
    """No data sets."""
    return {"dataSets": []}


def heartbeat(asked: Asked) -> Document:
    """A client lives; nothing follows."""
    _ = asked.job
    return {}
