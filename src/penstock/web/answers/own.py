"""Answers of Penstock's own interface: whole documents, histories, timelines of checkpoints."""

from __future__ import annotations

from penstock.web.answers.asking import Asked, Document, Refused
from penstock.web.diagnosis import checkpoint_sentence, job_sentences

HEAD = (
    "format",
    "id",
    "job",
    "name",
    "now",
    "state",
    "flink_state",
    "started",
    "ended",
    "attempt",
    "restarts",
    "parallelism",
    "rows",
    "rates",
    "watermark_ms",
    "at_risk",
)


def jobs(asked: Asked) -> Document:
    """All jobs, in a few numbers each."""
    return {"jobs": [head(job) for job in asked.documents.values()]}


def head(job: Document) -> Document:
    """A job in a few numbers."""
    latest = job["checkpoints"]["latest_completed"]
    return {
        **{name: job[name] for name in HEAD},
        "watermark_lag_ms": None if job["watermark_ms"] is None else job["now"] - job["watermark_ms"],
        "counts": job["checkpoints"]["counts"],
        "latest_completed": latest,
        "last_failure": None
        if not job["failures"]
        else {"when": job["failures"][0]["when"], "text": job["failures"][0]["text"].split("\n")[0]},
        "sentences": job_sentences(job),
    }


def job(asked: Asked) -> Document:
    """Everything about a job, except the subtasks of its checkpoints."""
    found = asked.job
    whole = asked.query.get("details") in ("1", "true")
    return shown(found) if not whole else {**found, "sentences": job_sentences(found)}


def shown(job: Document) -> Document:
    """What the page has of a job."""
    kept = {name: value for name, value in job.items() if name != "checkpoint_details"}
    latest = job["checkpoints"]["latest_completed"]
    return {
        **kept,
        "watermark_lag_ms": None if job["watermark_ms"] is None else job["now"] - job["watermark_ms"],
        "sentences": job_sentences(job),
        "latest_sentence": None
        if latest is None or (found := job["checkpoint_details"].get(str(latest["checkpoint"]))) is None
        else checkpoint_sentence(job, found),
    }


def checkpoint(asked: Asked) -> Document:
    """The timeline of a checkpoint: each subtask's phases, the slowest subtask first, and why the checkpoint took as
    long as it did."""
    return timeline(asked.job, asked.checkpoint)


def history(asked: Asked) -> Document:
    """The numbers of a job over the last ten minutes by the second, and over the last day by the minute."""
    return asked.history(asked.job["id"])


def stream(_asked: Asked) -> Document:
    """Server-sent events: first `snapshot`, a whole picture, and then `changes`, four times a second at most. With
    `job`, the picture has that job as a whole."""
    raise Refused(404, "the server answers this address in another way")


def description(_asked: Asked) -> Document:
    """The description of all addresses, as OpenAPI 3.1."""
    raise Refused(404, "the server answers this address in another way")


def metrics(_asked: Asked) -> Document:
    """The metrics of all jobs, for Prometheus."""
    raise Refused(404, "the server answers this address in another way")


def login(_asked: Asked) -> Document:
    """The page on which a browser gives the token."""
    raise Refused(404, "the server answers this address in another way")


def state(asked: Asked) -> Document:
    """How much state each operator has in the newest checkpoint, and how it is spread over the subtasks."""
    found = newest(asked.job)
    names = {o["id"]: (o["name"], v["id"]) for v in asked.job["vertices"] for o in v["operators"]}
    operators = []
    for vertex in found["vertices"]:
        for each in vertex["operators"]:
            sizes = each["subtasks"]
            mean = sum(sizes) / len(sizes) if sizes else 0
            name, _ = names.get(each["id"], (each["key"], ""))
            operators.append(
                {**each, "name": name, "vertex": vertex["vertex"], "skew": max(sizes) / mean if mean else 1.0}
            )
    operators.sort(key=lambda each: -each["state_bytes"])
    return {"checkpoint": found["checkpoint"], "triggered": found["triggered"], "operators": operators}


def newest(job: Document) -> Document:
    """The newest completed checkpoint or savepoint, with its subtasks."""
    done = [c for c in job["checkpoint_details"].values() if c["status"] == "COMPLETED" and not c["discarded"]]
    if not done:
        raise Refused(404, "no completed checkpoint of this job is remembered")
    found: Document = max(done, key=lambda c: c["checkpoint"])
    return found


def timeline(job: Document, found: Document) -> Document:
    """The bars of each subtask, slowest first. A bar begins and ends at milliseconds after the trigger."""
    names = {vertex["id"]: vertex["name"] for vertex in job["vertices"]}
    bars = []
    for vertex in found["vertices"]:
        columns = vertex["subtasks"]
        for i, subtask in enumerate(columns["subtask"]):
            at, phases = 0.0, []
            is_there = columns["acknowledged"][i] is not None
            took = {
                "start_delay": columns["start_delay_ms"][i],
                "alignment": columns["alignment_ms"][i],
                "sync": columns["sync_ms"][i],
                "async": columns["async_ms"][i],
            }
            if columns["unaligned"][i]:
                # The snapshot is taken at the first barrier; its in-flight data is complete with the last barrier.
                took["async"] = max(took["async"], took["alignment"])
                took["alignment"] = 0
            for name, lasts in took.items():
                phases.append({"phase": name, "from_ms": round(at, 2), "to_ms": round(at + lasts, 2)})
                at += lasts
            end = columns["duration_ms"][i] if is_there else None
            if end is not None and end > at:
                phases.append({"phase": "rest", "from_ms": round(at, 2), "to_ms": end})
            bars.append(
                {
                    "vertex": vertex["vertex"],
                    "name": names.get(vertex["vertex"], vertex["key"]),
                    "subtask": subtask,
                    "acknowledged": is_there,
                    "duration_ms": end,
                    "phases": phases if is_there else [],
                    "unaligned": columns["unaligned"][i],
                    "late": columns["aborted"][i],
                    "waited_for": columns["waited_for"][i],
                    **{
                        name: columns[name][i]
                        for name in ("checkpointed_bytes", "state_bytes", "processed_bytes", "persisted_bytes")
                    },
                }
            )
    bars.sort(key=lambda bar: (bar["acknowledged"], -(bar["duration_ms"] or 0)))
    last_ack = found["latest_ack"]
    end = found["ended"]
    finishing = None if last_ack is None or end is None or found["status"] != "COMPLETED" else max(0, end - last_ack)
    head = {name: value for name, value in found.items() if name != "vertices"}
    return {
        **head,
        "sentence": checkpoint_sentence(job, found),
        "finishing_ms": finishing,
        "bars": bars,
        "vertices": [{n: v for n, v in vertex.items() if n != "subtasks"} for vertex in found["vertices"]],
    }
