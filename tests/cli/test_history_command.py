"""`penstock history` shows jobs that have ended."""

from __future__ import annotations

import re
import threading

import httpx
from click.testing import CliRunner
from web_rig import KEY, Rig, make_facts

import penstock as ps
from penstock.cli import main
from penstock.cli.history import serve
from penstock.core.job.events import JobState
from penstock.web.archive import Archive


def archived(folder):
    rig = Rig(facts=make_facts(JobState.FINISHED), archived=Archive(str(folder)).write)
    rig.get("/jobs")
    rig.close()


def test_jobs_of_an_archive_are_served(tmp_path, capsys):
    archived(tmp_path)
    until = threading.Event()
    said, answers = [], []

    def ask():
        try:
            said.append(wait_for(capsys))
            address = re.search(r"http://\S+", said[0]).group()
            answers.append(httpx.get(f"{address}/jobs").json())
            answers.append(httpx.get(f"{address}/jobs/{KEY}/checkpoints/details/3").status_code)
            answers.append(httpx.patch(f"{address}/jobs/{KEY}").status_code)
        finally:
            until.set()

    thread = threading.Thread(target=ask)
    thread.start()
    serve(tmp_path, ps.Web(port=0), until=until)
    thread.join()
    assert said[0].startswith("1 jobs that have ended are shown at ")
    assert answers == [{"jobs": [{"id": KEY, "status": "FINISHED"}]}, 200, 409]


def wait_for(capsys):
    pause, text = threading.Event(), ""
    for _ in range(1_000):
        text += capsys.readouterr().out
        if "\n" in text:
            return text
        pause.wait(0.02)
    raise AssertionError("nothing was said")


def test_a_folder_that_does_not_exist_is_a_mistake(tmp_path):
    result = CliRunner().invoke(main, ["history", str(tmp_path / "none")])
    assert result.exit_code != 0
    assert "is no folder" in result.output
