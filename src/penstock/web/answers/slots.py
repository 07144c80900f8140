"""Answers about slots, which clients of Flink's interface know as task managers, and about the driver's process."""

from __future__ import annotations

from typing import Any

from penstock.web import states
from penstock.web.answers.asking import Asked, Document, Refused, ms
from penstock.web.answers.metrics import slot_id, slot_of


def taskmanagers(asked: Asked) -> Document:
    """All slots of jobs that have not ended."""
    live = [job for job in asked.documents.values() if job["flink_state"] not in states.ENDED]
    return {"taskmanagers": [_slot(asked, job, slot) for job in live for slot in job["slots"]]}


def taskmanager(asked: Asked) -> Document:
    """One slot."""
    job, slot = slot_of(asked)
    rss, peak = slot["process"].get("rss_bytes", 0), slot["process"].get("peak_rss_bytes", 0)
    used = {"heapUsed": int(rss), "heapCommitted": int(rss), "heapMax": int(max(rss, peak))}
    zeros = (
        "nonHeapUsed",
        "nonHeapCommitted",
        "nonHeapMax",
        "directCount",
        "directUsed",
        "directMax",
        "mappedCount",
        "mappedUsed",
        "mappedMax",
        "nettyShuffleMemorySegmentsAvailable",
        "nettyShuffleMemorySegmentsUsed",
        "nettyShuffleMemorySegmentsTotal",
        "nettyShuffleMemoryAvailable",
        "nettyShuffleMemoryUsed",
        "nettyShuffleMemoryTotal",
    )
    taken = (
        [] if slot["spare"] else [{"jobId": job["id"], "resource": _resource(1.0), "assignedTasks": _tasks(job, slot)}]
    )
    return {
        **_slot(asked, job, slot),
        "allocatedSlots": taken,
        "metrics": {**used, **dict.fromkeys(zeros, 0), "garbageCollectors": []},
    }


def _tasks(job: Document, slot: Document) -> int:
    return 0 if slot["spare"] else sum(slot["number"] < vertex["parallelism"] for vertex in job["vertices"])


def _resource(cores: float) -> Document:
    return {
        "cpuCores": cores,
        "taskHeapMemory": 0,
        "taskOffHeapMemory": 0,
        "managedMemory": 0,
        "networkMemory": 0,
        "extendedResources": {},
    }


def _slot(asked: Asked, job: Document, slot: Document) -> Document:
    hardware = asked.about["hardware"]
    return {
        "id": slot_id(job, slot),
        "path": f"{slot['host'] or 'starting'}/{slot['pid'] or 0}",
        "dataPort": 0,
        "jmxPort": -1,
        "timeSinceLastHeartbeat": ms(slot["heard"]),
        "slotsNumber": 1,
        "freeSlots": int(slot["spare"]),
        "assignedTasks": _tasks(job, slot),
        "totalResource": _resource(1.0),
        "freeResource": _resource(1.0 if slot["spare"] else 0.0),
        "hardware": {
            "cpuCores": hardware["cores"],
            "physicalMemory": hardware["memory_bytes"],
            "freeMemory": max(0, hardware["memory_bytes"] - int(slot["process"].get("rss_bytes", 0))),
            "managedMemory": 0,
        },
        "memoryConfiguration": dict.fromkeys(
            (
                "frameworkHeap",
                "taskHeap",
                "frameworkOffHeap",
                "taskOffHeap",
                "networkMemory",
                "managedMemory",
                "jvmMetaspace",
                "jvmOverhead",
                "totalFlinkMemory",
                "totalProcessMemory",
            )
        ),
    }


# --- logs: what the server is given as a provider ------------------------------------------


def slot_logs(asked: Asked) -> Document:
    """The logs of a slot."""
    job, slot = slot_of(asked)
    return {"logs": asked.about["logs"].names(job["job"], slot["number"])}


def slot_log(asked: Asked) -> str:
    """One log of a slot."""
    job, slot = slot_of(asked)
    return _log(asked, job["job"], slot["number"])


def slot_stdout(asked: Asked) -> str:
    """What a slot has printed."""
    job, slot = slot_of(asked)
    return str(asked.about["logs"].read(job["job"], slot["number"], "stdout") or "")


def driver_logs(asked: Asked) -> Document:
    """The logs of the driver."""
    return {"logs": asked.about["logs"].names(None, None)}


def driver_log(asked: Asked) -> str:
    """One log of the driver."""
    return _log(asked, None, None)


def driver_stdout(asked: Asked) -> str:
    """What the driver has printed."""
    return str(asked.about["logs"].read(None, None, "stdout") or "")


def _log(asked: Asked, job: str | None, slot: int | None) -> str:
    logs = asked.about["logs"]
    name = asked.path.get("logname")
    if name is None:
        known = logs.names(job, slot)
        return str(logs.read(job, slot, known[0]["name"]) or "") if known else ""
    # Only names that are listed are read: no name is ever a path.
    text = logs.read(job, slot, name) if name in [each["name"] for each in logs.names(job, slot)] else None
    if text is None:
        raise Refused(404, "File not found.")
    return str(text)


def profiles(asked: Asked) -> Document:
    """Profiles: none."""
    if "taskmanagerid" in asked.path:
        slot_of(asked)
    return {"profilingList": []}


def driver_config(asked: Asked) -> list[Document]:
    """The settings of the driver's process."""
    return [{"key": key, "value": value} for key, value in asked.about["config"].items()]


def driver_environment(asked: Asked) -> Any:
    """The process of the driver."""
    return dict(asked.about["environment"])


def driver_threads(asked: Asked) -> Document:
    """The stacks of the driver's threads."""
    return {"threadInfos": asked.about["threads"]()}


def slot_threads(asked: Asked) -> Document:
    """The stacks of a slot's threads, as far as the driver has them: of a slot whose loop is stuck."""
    job, slot = slot_of(asked)
    found = [stuck for stuck in job["stuck"] if stuck["slot"] == slot["number"]]
    return {
        "threadInfos": [
            {
                "threadName": "loop",
                "stringifiedThreadInfo": f'"loop" stuck for {stuck["stuck_ms"]} ms\n{stuck["stack"]}\n',
            }
            for stuck in found
        ]
    }
