"""What Prometheus is told about jobs: every listed metric, and nothing that is not listed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from job_documents import NOW, job_document, vertex
from prometheus_client.parser import text_string_to_metric_families

from penstock.api.metrics import Metrics
from penstock.metrics.prometheus import SERIES, USER_METRIC, exposition

ROOT = Path(__file__).resolve().parents[2]
DASHBOARD = ROOT / "docs" / "grafana" / "penstock.json"


def samples(*jobs):
    text, kind = exposition(jobs)
    assert kind.startswith("text/plain; version=")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def value(found, name, **labels):
    of_job = {"job": "orders-0123abcd", "job_name": "orders"}
    return found.get((name, tuple(sorted({**of_job, **labels}.items()))))


def test_numbers_of_the_job_are_there():
    found = samples(job_document())
    assert value(found, "penstock_job_state", state="running") == 1
    assert value(found, "penstock_job_uptime_seconds") == 90
    assert value(found, "penstock_job_restarts_total") == 3
    assert value(found, "penstock_job_records_read_total") == 100
    assert value(found, "penstock_job_records_dropped", reason="late") == 5
    assert value(found, "penstock_job_records_at_risk") == 12
    assert value(found, "penstock_job_watermark_lag_seconds") == 2.5
    assert value(found, "penstock_checkpoints_total", result="completed") == 7
    assert value(found, "penstock_last_checkpoint_age_seconds") == 4
    assert value(found, "penstock_last_checkpoint_duration_seconds") == 0.25


def test_numbers_of_subtasks_and_slots_have_their_labels():
    found = samples(job_document())
    assert value(found, "penstock_subtask_records_in_total", step="bids", subtask="1") == 40
    assert value(found, "penstock_subtask_time_seconds_total", step="bids.window", subtask="1", what="busy") == 2
    assert value(found, "penstock_subtask_watermark_seconds", step="bids", subtask="0") == NOW / 1_000
    assert value(found, "penstock_subtask_watermark_seconds", step="bids", subtask="1") is None
    assert value(found, "penstock_slot_process", slot="slot-0.1.0", host="here", number="rss_bytes") == 1e8


def test_metrics_of_functions_have_names_of_their_own():
    metrics = Metrics("bids.score")
    metrics.counter("rejected").add(4)
    metrics.counter("seen_total").add(1)
    metrics.gauge("open").set(-2)
    metrics.histogram("seconds", buckets=(0.5, 1)).record(0.7)
    job = job_document(vertices=[vertex("bids", other=[{}, {"timers_fired": 6, **metrics.totals()}])])
    found, labels = samples(job), {"step": "bids.score", "subtask": "1"}
    assert value(found, f"{USER_METRIC}rejected_total", **labels) == 4
    assert value(found, f"{USER_METRIC}seen_total", **labels) == 1
    assert value(found, f"{USER_METRIC}open", **labels) == -2
    assert value(found, f"{USER_METRIC}seconds_bucket", le="0.5", **labels) == 0
    assert value(found, f"{USER_METRIC}seconds_bucket", le="1.0", **labels) == 1
    assert value(found, f"{USER_METRIC}seconds_bucket", le="+Inf", **labels) == 1
    assert value(found, f"{USER_METRIC}seconds_sum", **labels) == 0.7
    assert value(found, "penstock_subtask_number", number="timers_fired", step="bids", subtask="1") == 6
    assert not any("user/" in name or "user/" in str(labels) for name, labels in found)


def test_two_functions_may_give_one_name_to_two_kinds_of_metric():
    first, second = Metrics("a"), Metrics("b")
    first.counter("size").add(1)
    second.histogram("size").record(2)
    found = samples(job_document(vertices=[vertex("v", other=[first.totals(), second.totals()])]))
    assert value(found, f"{USER_METRIC}size_total", step="a", subtask="0") == 1
    assert value(found, f"{USER_METRIC}size_histogram_count", step="b", subtask="1") == 1


def test_of_a_job_that_has_ended_only_its_counts_are_left():
    found = samples(job_document(state="finished", ended=NOW, watermark_ms=None))
    names = {name for name, _ in found}
    assert value(found, "penstock_job_state", state="finished") == 1
    assert value(found, "penstock_job_records_read_total") == 100
    assert not any(name.startswith(("penstock_subtask", "penstock_slot")) for name in names)
    assert "penstock_job_uptime_seconds" not in names


def test_jobs_share_a_metric_and_differ_in_labels():
    found = samples(job_document(), job_document(job="clicks-1", name="clicks", restarts=9))
    assert value(found, "penstock_job_restarts_total") == 3
    assert value(found, "penstock_job_restarts_total", job="clicks-1", job_name="clicks") == 9


def test_names_from_programs_cannot_break_the_text():
    hostile = 'a"} 1\npenstock_job_restarts_total{job="x'
    found = samples(job_document(name=hostile))
    assert value(found, "penstock_job_restarts_total", job_name=hostile) == 3


def test_a_job_before_its_first_checkpoint_and_data_of_long_ago_are_no_errors():
    counts = {"restored": 0, "total": 0, "in_progress": 0, "completed": 0, "failed": 0}
    found = samples(
        job_document(
            checkpoints={"counts": counts, "latest_completed": None},
            at_risk={"records": None, "since_ms": None, "checkpoint": None},
            watermark_ms=0,
        )
    )
    names = {name for name, _ in found}
    assert "penstock_last_checkpoint_age_seconds" not in names
    assert "penstock_job_watermark_lag_seconds" not in names
    assert value(found, "penstock_job_watermark_seconds") == 0


def test_no_jobs_are_no_metrics():
    assert exposition([])[0] == b""


def test_names_follow_the_rules_of_prometheus():
    names = [series.name for series in SERIES]
    assert len(set(names)) == len(names)
    for series in SERIES:
        assert re.fullmatch(r"penstock_[a-z_]+", series.name)
        assert not series.name.endswith("_total")
        assert series.kind in ("counter", "gauge")
        assert series.help.endswith(".")


# --- the example of a dashboard --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dashboard():
    return json.loads(DASHBOARD.read_text("utf-8"))


def test_every_metric_of_the_dashboard_exists(dashboard):
    known = {series.shown_name: set(series.labels) for series in SERIES}
    texts = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    texts += [v["query"]["query"] for v in dashboard["templating"]["list"] if v["type"] == "query"]
    asked = [name for text in texts for name in re.findall(r"penstock_[a-z_]+", text)]
    assert asked
    assert set(asked) <= set(known)
    for text in texts:
        for name, selector in re.findall(r"(penstock_[a-z_]+)\{([^}]*)\}", text):
            assert set(re.findall(r"(\w+)=~?\"", selector)) <= known[name]
        for grouped in re.findall(r"by \(([^)]*)\)", text):
            (name,) = set(re.findall(r"penstock_[a-z_]+", text))
            assert {label.strip() for label in grouped.split(",")} <= known[name]


def test_the_dashboard_has_the_shape_that_grafana_reads(dashboard):
    assert (dashboard["uid"], dashboard["schemaVersion"]) == ("penstock-jobs", 39)
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        assert panel["type"] in ("timeseries", "stat")
        place = panel["gridPos"]
        assert 0 <= place["x"] <= place["x"] + place["w"] <= 24
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        for text in re.findall(r"\$\{?(\w+)", json.dumps(panel)):
            assert text in variables
    taken = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(taken)) == len(taken)
