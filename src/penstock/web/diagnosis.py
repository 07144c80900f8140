"""Says in words why a checkpoint took as long as it did, and where a job is slow.

The rules are a few, and each names what it saw. A rule that saw nothing says nothing.
"""

from __future__ import annotations

from typing import Any

from penstock.core.view_texts import duration_text, size_text
from penstock.web import states

Document = dict[str, Any]

QUICK_MS = 100
"""A checkpoint that took less needs no explanation."""
BLOCKED, BUSY = 0.1, 0.5


# --- the bottleneck of a job --------------------------------------------------------------


def bottleneck(job: Document) -> Document | None:
    """The vertex that slows the job down: it is busy and not blocked itself, and a vertex in front of it is blocked.
    None if no vertex is blocked."""
    by_id = {vertex["id"]: vertex for vertex in job["vertices"]}
    into: dict[str, list[str]] = {}
    for edge in job["edges"]:
        into.setdefault(edge["to"], []).append(edge["from"])
    found = []
    for vertex in job["vertices"]:
        upstream = [by_id[key] for key in into.get(vertex["id"], [])]
        pressed = max((each["shares"]["blocked"]["max"] for each in upstream), default=0.0)
        if pressed > BLOCKED and vertex["shares"]["blocked"]["max"] <= BLOCKED:
            at_work = vertex["subtasks"]["busy"]
            slowest = max(range(len(at_work)), key=at_work.__getitem__) if at_work else 0
            found.append((pressed, vertex, slowest))
    if not found:
        return None
    pressed, vertex, slowest = max(found, key=lambda each: each[0])
    return {
        "vertex": vertex["id"],
        "name": vertex["name"],
        "subtask": slowest,
        "busy": vertex["subtasks"]["busy"][slowest] if vertex["subtasks"]["busy"] else 0.0,
        "pressed": pressed,
    }


def job_sentences(job: Document) -> list[Document]:
    """What is to be said about a job: is it healthy, does it keep up, what would a crash cost. Each sentence has a
    level: `good`, `note` or `bad`."""
    said: list[Document] = []

    def say(level: str, topic: str, text: str) -> None:
        said.append({"level": level, "topic": topic, "text": text})

    state = job["flink_state"]
    if state in states.ENDED:
        failure = job["failures"][0]["text"].split("\n")[0] if job["failures"] and state == "FAILED" else ""
        say(
            "bad" if state == "FAILED" else "note",
            "state",
            f"The job has ended: {job['state']}{': ' if failure else ''}{failure}.",
        )
        return said
    if state != "RUNNING":
        last = job["failures"][0] if job["failures"] else None
        why = "" if last is None else f" The last failure: {last['text'].splitlines()[0] if last['text'] else ''}"
        say("bad" if last else "note", "state", f"The job is {job['state']}.{why}")
    for stuck in job["stuck"]:
        where = "in its own turn" if stuck["operator"] is None else f"in {stuck['operator']}[{stuck['subtask']}]"
        say("bad", "stuck", f"Slot {stuck['slot']} has not turned for {duration_text(stuck['stuck_ms'])}, {where}.")
    if (found := bottleneck(job)) is not None:
        say(
            "bad" if found["pressed"] > BUSY else "note",
            "bottleneck",
            f"{found['name']}[{found['subtask']}] slows the job down: it is at work {found['busy']:.0%} of its time, "
            f"and what comes before it is blocked up to {found['pressed']:.0%} of its time.",
        )
    latest, counts = job["checkpoints"]["latest_completed"], job["checkpoints"]["counts"]
    failed = job["checkpoints"]["latest_failed"]
    if failed is not None and (latest is None or failed["checkpoint"] > latest["checkpoint"]):
        say("bad", "checkpoints", f"The newest checkpoint failed: {failed['failure_text']}.")
    elif latest is not None:
        age = duration_text(max(0, job["now"] - (latest["ended"] or latest["triggered"])))
        say(
            "good",
            "checkpoints",
            f"Checkpoint {latest['checkpoint']} completed {age} ago, in {duration_text(latest['duration_ms'])}.",
        )
    elif counts["total"] == 0 and state == "RUNNING":
        say("note", "checkpoints", "No checkpoint has been taken yet.")
    risk = job["at_risk"]
    if risk["records"] is not None and risk["since_ms"] is not None:
        say(
            "note",
            "risk",
            f"After a crash now, {risk['records']:,} records would be read again: those of the last "
            f"{duration_text(risk['since_ms'])}.",
        )
    return said


# --- a checkpoint -------------------------------------------------------------------------


def checkpoint_sentence(job: Document, found: Document) -> str:
    """Why a checkpoint took as long as it did; why it failed; or what it waits for."""
    names = {vertex["id"]: vertex["name"] for vertex in job["vertices"]}
    rows = [_row(vertex, i) for vertex in found["vertices"] for i in range(len(vertex["subtasks"]["subtask"]))]
    missing = [row for row in rows if not row["there"]]
    if found["status"] == "FAILED":
        text = f"It failed: {found['failure_text']}."
        return f"{text} {_missing(missing, names)}" if missing else text
    if found["status"] == "IN_PROGRESS":
        return f"It is under way. {_missing(missing, names)}" if missing else "All subtasks have acknowledged."
    there = [row for row in rows if row["there"]]
    if not there:
        return "No subtask took part."
    finishing = max(0, (found["ended"] or 0) - (found["latest_ack"] or 0))
    slowest = max(there, key=lambda row: row["duration_ms"])
    if finishing > max(QUICK_MS, slowest["duration_ms"]):
        return (
            f"All subtasks had acknowledged after {duration_text(found['duration_ms'])}; then it took "
            f"{duration_text(finishing)} to make the checkpoint durable, on the driver: the storage is slow."
        )
    if found["duration_ms"] < QUICK_MS:
        return f"It was quick: {duration_text(found['duration_ms'])}."
    return _why_slow(job, slowest, there, names)


def _why_slow(job: Document, slowest: Document, there: list[Document], names: dict[str, str]) -> str:
    """Which phase of the slowest subtask took longest, and what is behind it."""
    took = {
        "delay": slowest["start_delay_ms"],
        "alignment": 0 if slowest["unaligned"] else slowest["alignment_ms"],
        "sync": slowest["sync_ms"],
        "async": slowest["async_ms"],
    }
    took["rest"] = max(0, slowest["duration_ms"] - sum(took.values()))
    phase = max(took, key=lambda name: took[name])
    lasted, who = duration_text(took[phase]), _name(slowest, names)
    cause = bottleneck(job)
    pressure = "" if cause is None else f": back-pressure from {cause['name']}[{cause['subtask']}]"
    if cause is not None and (cause["vertex"], cause["subtask"]) == (slowest["vertex"], slowest["subtask"]):
        pressure = ", behind records that it had not worked off: it slows the job down"
    remedy = _remedy(slowest, there)
    if phase == "alignment":
        other = slowest["waited_for"]
        of = "other channels" if other is None else f"{names.get(other['vertex'], other['key'])}[{other['subtask']}]"
        behind = (
            "" if slowest["processed_bytes"] == 0 else f", and read {size_text(slowest['processed_bytes'])} meanwhile"
        )
        return f"{who} waited {lasted} for the barrier of {of}{behind}{pressure}{remedy}."
    if phase == "delay":
        why = (
            pressure or ": it was late to turn to the barrier" if not slowest["is_source"] else ": the source was busy"
        )
        return f"The barrier came to {who} only after {lasted}{why}{remedy}."
    if phase == "sync":
        return f"{who} took {lasted} to freeze its state, and did nothing else meanwhile."
    if phase == "async":
        speed = slowest["checkpointed_bytes"] / max(1e-3, took[phase] / 1_000)
        return (
            f"{who} took {lasted} to write {size_text(slowest['checkpointed_bytes'])}, {size_text(speed)} per second."
        )
    return f"{who} was busy for {lasted} before it could take its snapshot, or its acknowledgement came late{pressure}."


def _remedy(slowest: Document, there: list[Document]) -> str:
    """What unaligned checkpoints would have made of it."""
    if slowest["unaligned"] or any(row["unaligned"] for row in there):
        return ""
    rest = max(row["sync_ms"] + row["async_ms"] for row in there)
    without = max(10.0, rest)
    if without * 2 >= slowest["duration_ms"]:
        return ""
    return f"; unaligned checkpoints would have taken about {duration_text(without)}"


def _row(vertex: Document, i: int) -> Document:
    columns = vertex["subtasks"]
    row = {name: values[i] for name, values in columns.items()}
    is_source = bool(row["rows_in"]) and row["waited_for"] is None and row["alignment_ms"] == 0
    return {
        **row,
        "vertex": vertex["vertex"],
        "key": vertex["key"],
        "there": row["acknowledged"] is not None,
        "is_source": is_source,
    }


def _name(row: Document, names: dict[str, str]) -> str:
    return f"{names.get(row['vertex'], row['key'])}[{row['subtask']}]"


def _missing(missing: list[Document], names: dict[str, str]) -> str:
    shown = ", ".join(_name(row, names) for row in missing[:3])
    more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
    return f"Not acknowledged: {shown}{more}."
