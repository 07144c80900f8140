"""A real Chromium that looks at the page, and a server with a played job for it to look at."""

from __future__ import annotations

import base64
import os
import shutil
import socket
import threading
from dataclasses import replace

import pytest
import uvicorn
from web_rig import JOB, Played, Rig, make_facts, totals

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
WITHIN_MS = 60_000
"""The last resort of what a test waits for."""


def chromium():
    """Where Chromium is; skips the test if there is none."""
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed: install penstock[dev]")
    named = [os.environ.get("PENSTOCK_CHROMIUM", ""), shutil.which("chromium"), shutil.which("chromium-browser")]
    found = next((path for path in named if path), None)
    if found is None:
        pytest.skip("Chromium was not found: install the package chromium, or set PENSTOCK_CHROMIUM to its path")
    return found


# --- a page that is watched ------------------------------------------------------------------------------------------


class Watched:
    """A page in the browser, and everything that it complained of."""

    def __init__(self, browser, address, *, size=WIDE, dark=False):
        self.address = address
        self.complaints = []
        self.context = browser.new_context(viewport=size, color_scheme="dark" if dark else "light")
        self.page = self.context.new_page()
        self.page.set_default_timeout(WITHIN_MS)
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        self.page.on("dialog", self._dialog)
        self.page.on("request", self._asked)

    def _said(self, message):
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text}")

    def _dialog(self, dialog):
        self.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _asked(self, request):
        if not request.url.startswith((self.address, "data:", "blob:")):
            self.complaints.append(f"asked elsewhere: {request.url}")

    def open(self, place=""):
        """Look at a place of the page."""
        self.page.goto(f"{self.address}/{place}")
        self.page.wait_for_selector(".connection.live")
        return self.page

    def view(self, job, *parts):
        """Look at a view of a job."""
        return self.open("#/" + "/".join(["job", job, *map(str, parts)]))

    def forgive(self, text):
        """Forget complaints with this text: the browser itself notes every request that fails, also one that should."""
        self.complaints[:] = [complaint for complaint in self.complaints if text not in complaint]

    def measured(self):
        """How long each update of the page took, in ms."""
        script = "() => performance.getEntriesByName('penstock-update').map((each) => each.duration)"
        return self.page.evaluate(script)

    def close(self):
        self.context.close()


# --- what is on a picture --------------------------------------------------------------------------------------------

COUNT_COLOURS = """
async (png) => {
  const bytes = Uint8Array.from(atob(png), (character) => character.charCodeAt(0));
  const picture = await createImageBitmap(new Blob([bytes], { type: "image/png" }));
  const pen = new OffscreenCanvas(picture.width, picture.height).getContext("2d");
  pen.drawImage(picture, 0, 0);
  const pixels = new Uint32Array(pen.getImageData(0, 0, picture.width, picture.height).data.buffer);
  const counts = new Map();
  for (const pixel of pixels) counts.set(pixel, (counts.get(pixel) ?? 0) + 1);
  return { colours: counts.size, most: Math.max(...counts.values()) / pixels.length };
}
"""


def is_empty(browser, png):
    """Whether a picture shows nothing: next to all of it has one colour, or it has hardly any colours."""
    page = browser.new_page()
    try:
        found = page.evaluate(COUNT_COLOURS, base64.b64encode(png).decode())
    finally:
        page.close()
    return found["colours"] < 20 or found["most"] > 0.995


# --- a server with a played job --------------------------------------------------------------------------------------


class Living(Played):
    """A played job that gets on with every look at it."""

    def __init__(self, facts):
        self.looks = 0
        super().__init__(facts)

    @property
    def facts(self):
        """The facts of this moment: every look finds other numbers in every subtask."""
        if self.first.view.state.is_terminal:
            return self.first
        self.looks += 1
        first, looks = self.first, self.looks
        tasks = {
            task: {**totals(100 * looks * (1 + number % 7), busy=7.0 * looks * (1 + number % 5), blocked=0.5 * looks)}
            | ({"watermark_us": 1_794_999_000_000_000 + looks * 100_000} if "window" in task else {})
            for number, task in enumerate(first.view.tasks)
        }
        return replace(first, now=first.now + 250 * looks, view=replace(first.view, tasks=tasks))

    @facts.setter
    def facts(self, first):
        self.first = first


class Served:
    """The application with a played job, behind a real port."""

    def __init__(self, job_name="bids", **facts):
        self.rig = Rig()
        self.job = Living(make_facts(**facts))
        # In the place of the job that the rig made.
        self.rig.add(JOB, self.job, name=job_name)
        self._port = 0
        self.begin()
        self.address = f"http://127.0.0.1:{self._port}"

    def begin(self):
        """Answer; at the same port as before."""
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", self._port))
        self._socket.listen(64)
        self._port = self._socket.getsockname()[1]
        config = uvicorn.Config(
            self.rig.app, log_config=None, access_log=False, lifespan="off", ws="none", timeout_graceful_shutdown=1
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True)
        self._thread.start()

    def end(self):
        """Answer nothing more."""
        self._server.should_exit = True
        self._thread.join(30)
        self._socket.close()

    def close(self):
        self.end()
        self.rig.close()
