"""The timeline of a checkpoint as HTML: one bar per subtask, one colour per phase, the slowest subtask on top.

The HTML needs no script and no other file. Everything that a program may have named is escaped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from penstock.core.slowness import Bar, Details, Phase, diagnosis, timeline
from penstock.core.view_texts import count_of, duration_text

COLOURS = {
    Phase.DELAY.value: "#b6bcc4",
    Phase.ALIGNMENT.value: "#e0a030",
    Phase.SYNC.value: "#d0453f",
    Phase.ASYNC.value: "#3f7fd0",
    Phase.ANSWER.value: "#8a63c9",
}
MOST_BARS = 60
"""So many subtasks have a bar; the others are only counted."""

_WIDTH, _ROW, _LABEL, _TIME = 520, 18, 190, 80
_CHARACTERS = 26
"""So many characters of a subtask's name fit in front of its bar."""


def timeline_html(details: Details, inputs: Mapping[str, Sequence[str]] | None = None) -> str:
    """The sentence about the checkpoint, a legend, and the bars."""
    bars = timeline(details)
    said = f'<p style="margin:4px 0">{escape(diagnosis(details, inputs))}</p>'
    if not bars:
        return said
    legend = " ".join(
        '<span style="white-space:nowrap"><span style="display:inline-block;width:10px;height:10px;'
        f'background:{colour}"></span> {escape(name)}</span>'
        for name, colour in COLOURS.items()
    )
    more = len(bars) - MOST_BARS
    rest = f'<p style="margin:4px 0">{count_of(more, "subtask")} more, which were quicker</p>' if more > 0 else ""
    return f'{said}<p style="margin:4px 0;font-size:12px">{legend}</p>{bars_svg(bars[:MOST_BARS])}{rest}'


def bars_svg(bars: Sequence[Bar]) -> str:
    """The bars as SVG."""
    longest = max([1.0, *(max(bar.total_ms, sum(bar.phases.values())) for bar in bars)])
    rows = "".join(_row(bar, number, longest) for number, bar in enumerate(bars))
    width, height = _LABEL + _WIDTH + _TIME, len(bars) * _ROW + 4
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'role="img" aria-label="How long each subtask took" font-family="ui-monospace,monospace" font-size="12" '
        f'fill="currentColor" style="max-width:100%">{rows}</svg>'
    )


def _row(bar: Bar, number: int, longest: float) -> str:
    y, x = number * _ROW + 2, float(_LABEL)
    shown = bar.name if len(bar.name) <= _CHARACTERS else f"{bar.name[: _CHARACTERS - 8]}…{bar.name[-7:]}"
    parts = [f'<g><title>{escape(told(bar))}</title><text x="0" y="{y + 11}">{escape(shown)}</text>']
    for name, took in bar.phases.items():
        width = took / longest * _WIDTH
        if width >= 0.5:
            parts.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_ROW - 4}" fill="{COLOURS[name]}"/>')
        x += width
    time = "no answer" if bar.is_missing else duration_text(bar.total_ms)
    parts.append(f'<text x="{x + 6:.1f}" y="{y + 11}">{time}</text></g>')
    return "".join(parts)


def told(bar: Bar) -> str:
    """The bar in words."""
    if bar.is_missing:
        return f"{bar.name} has not acknowledged the checkpoint"
    phases = ", ".join(f"{name} {duration_text(took)}" for name, took in bar.phases.items())
    return f"{bar.name} took {duration_text(bar.total_ms)}: {phases}"
