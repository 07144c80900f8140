"""The report of a job as one HTML page that needs no other file and no script: for a ticket, or for a colleague.

Everything that the program, its data or an error may have named is escaped. The page forbids scripts and requests by
itself, in case something was overlooked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from penstock.core.slowness import Bar
from penstock.core.timeline_html import COLOURS, MOST_BARS, bars_svg
from penstock.core.view_texts import count_of, duration_text, size_text, time_text

MOST_TIMELINES = 10
"""So many of the newest checkpoints have a timeline."""

_STYLE = """
:root{color-scheme:light dark}
body{font:15px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem;border-bottom:1px solid #8884}
table{border-collapse:collapse;font-size:.9rem}th,td{text-align:left;padding:.2rem .9rem .2rem 0;vertical-align:top}
td.n,th.n{text-align:right}pre{background:#8881;padding:.6rem;overflow:auto;font-size:.8rem}
.wide{overflow-x:auto}details{margin:.6rem 0}summary{cursor:pointer}.dim{opacity:.7}
.graph{background:#fff;padding:.5rem;overflow-x:auto}.graph svg{max-width:100%;height:auto}
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def report_html(
    job: Mapping[str, Any],
    checkpoints: Sequence[Mapping[str, Any]],
    failures: Sequence[Mapping[str, Any]],
    *,
    made: str,
) -> str:
    """The page. `job`, `checkpoints` and `failures` are what a job answers to `info`, `checkpoints` and `exceptions`;
    `made` says when and by what the report was made."""
    title = f"{job['name']}: {job['state']}"
    parts = [
        f"<h1>{escape(title)}</h1><p class='dim'>{escape(job['id'])}. {escape(made)}</p>",
        "<h2>Overview</h2>",
        _facts(job),
        "<h2>Graph</h2>",
        f"<div class='graph'>{job.get('graph') or '<p>The graph is not known.</p>'}</div>",
        _steps(job),
        "<h2>Checkpoints</h2>",
        _checkpoints(checkpoints),
        "<h2>Failures</h2>",
        *(_failures(failures) or ["<p>Nothing has failed.</p>"]),
        "<h2>Slots</h2>",
        _slots(job),
        "<h2>Settings</h2>",
        _settings(job.get("settings") or {}),
    ]
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        f"<meta http-equiv='Content-Security-Policy' content=\"{_POLICY}\">"
        "<meta name='viewport' content='width=device-width'>"
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Sequence[str] = ()) -> str:
    """A table of texts, which are escaped here."""
    kinds = [" class='n'" if head in numbers else "" for head in heads]
    head = "".join(f"<th{kind}>{escape(text)}</th>" for kind, text in zip(kinds, heads, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{escape(text)}</td>" for kind, text in zip(kinds, row, strict=True)) + "</tr>"
        for row in rows
    )
    return f"<div class='wide'><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def _facts(job: Mapping[str, Any]) -> str:
    last = job["last_checkpoint"]
    rows = [
        ["state", str(job["state"])],
        ["slots", f"{job['slots']}, {count_of(job['restarts'], 'restart')}"],
        ["events read", f"{job['rows_read']:,}"],
        ["checkpoints", f"{job['checkpoints_completed']} completed, {job['checkpoints_failed']} failed"],
        ["newest checkpoint", "none" if last is None else f"{last}, in {duration_text(job['last_checkpoint_ms'])}"],
        ["event time", "none" if job["watermark_us"] is None else time_text(job["watermark_us"] // 1_000)],
    ]
    dropped = ("late_dropped", "timeless_dropped", "beyond_time_dropped", "lines_skipped")
    rows += [[name.replace("_", " "), f"{job[name]:,}"] for name in dropped if job.get(name)]
    rows += [
        ["stuck", f"slot {stuck['slot']} for {duration_text(stuck['stuck_ms'])} in {stuck['operator']}"]
        for stuck in job["stuck"]
    ]
    return _table(["", ""], rows)


def _steps(job: Mapping[str, Any]) -> str:
    rows = []
    for vertex in (job["plan"] or {"vertices": ()})["vertices"]:
        tasks = [values for name, values in job["tasks"].items() if name.rpartition("[")[0] == vertex["id"]]
        totals = [sum(values.get(name, 0) for values in tasks) for name in ("rows_in", "rows_out")]
        rows.append([vertex["name"], str(vertex["parallelism"]), *(f"{total:,.0f}" for total in totals)])
    numbers = ("subtasks", "events in", "events out")
    return _table(["step", *numbers], rows, numbers=numbers)


def _checkpoints(checkpoints: Sequence[Mapping[str, Any]]) -> str:
    if not checkpoints:
        return "<p>The job has taken no checkpoint.</p>"
    numbers = ("took", "written", "state")
    rows = [
        [
            str(one["checkpoint"]),
            str(one["kind"]).lower(),
            str(one["status"]).lower().replace("_", " "),
            time_text(one["triggered"]),
            duration_text(one["duration_ms"]),
            size_text(one["totals"]["checkpointed_bytes"]),
            size_text(one["totals"]["state_bytes"]),
            f"{one['totals']['num_acknowledged']} of {one['totals']['num_subtasks']}",
        ]
        for one in checkpoints
    ]
    listed = _table(["id", "kind", "status", "triggered", *numbers, "acknowledged"], rows, numbers=numbers)
    return listed + "".join(_timelines(checkpoints))


def _timelines(checkpoints: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    legend = " ".join(
        "<span><span style='display:inline-block;width:.7em;height:.7em;"
        f"background:{colour}'></span> {escape(name)}</span>"
        for name, colour in COLOURS.items()
    )
    with_bars = [one for one in checkpoints if one.get("timeline")][:MOST_TIMELINES]
    for number, one in enumerate(with_bars):
        bars = [
            Bar(
                vertex=bar["vertex"],
                subtask=bar["subtask"],
                total_ms=bar["total_ms"],
                phases={name: took for name, took in bar["phases"].items() if name in COLOURS},
                is_missing=bar["is_missing"],
            )
            for bar in one["timeline"][:MOST_BARS]
        ]
        title = f"{str(one['kind']).lower()} {one['checkpoint']}: {str(one['status']).lower().replace('_', ' ')}"
        left = len(one["timeline"]) - len(bars)
        more = f"<p class='dim'>{left} more subtasks were quicker.</p>" if left else ""
        yield (
            f"<details{' open' if number == 0 else ''}><summary>{escape(title)}</summary>"
            f"<p>{escape(one['diagnosis'])}</p><p class='dim'>{legend}</p>{bars_svg(bars)}{more}</details>"
        )


def _failures(failures: Sequence[Mapping[str, Any]]) -> list[str]:
    found = []
    for failure in failures:
        where = "" if failure["operator"] is None else f" in {failure['operator']!r}"
        subtask = "" if failure["subtask"] is None else f", subtask {failure['subtask']}"
        pause = failure["restart_in_ms"]
        follows = "No restart followed." if pause is None else f"Restarted after {duration_text(pause)}."
        trace = f"<pre>{escape(failure['traceback'])}</pre>" if failure["traceback"] else ""
        text = (failure["text"].splitlines() or [""])[0]
        found.append(
            f"<p><strong>{escape(time_text(failure['when']) + where + subtask)}</strong>: {escape(text)}<br>"
            f"<span class='dim'>{follows}</span></p>{trace}"
        )
    return found


def _slots(job: Mapping[str, Any]) -> str:
    rows = [
        [str(slot["number"]) if kind == "slot_views" else "spare", slot["host"] or "comes up", str(slot["pid"] or "")]
        for kind in ("slot_views", "spares")
        for slot in job[kind]
    ]
    return _table(["slot", "host", "pid"], rows) if rows else "<p>No slot is known.</p>"


def _settings(settings: Mapping[str, Any]) -> str:
    rows = list(_flat(settings, ""))
    return _table(["setting", "value"], rows) if rows else "<p>The settings are not known.</p>"


def _flat(settings: Mapping[str, Any], prefix: str) -> Iterator[list[str]]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield [f"{prefix}{name}", str(value)]
