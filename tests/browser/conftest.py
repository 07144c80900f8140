"""One Chromium for the tests of a file that look at the page."""

from __future__ import annotations

import pytest
from page_browser import FLAGS, Watched, chromium


@pytest.fixture(scope="module")
def browser():
    """Chromium, without a window. It ends with the file: Playwright keeps an event loop on this thread, and tests in
    other files have loops of their own."""
    path = chromium()
    from playwright.sync_api import sync_playwright  # only machines with a browser have it

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=path, headless=True, args=FLAGS)
        yield found
        found.close()


@pytest.fixture
def look(browser):
    """Opens pages, and closes them at the end of the test. A page that complained fails the test."""
    opened = []

    def open_page(address, **more):
        opened.append(Watched(browser, address, **more))
        return opened[-1]

    yield open_page
    for watched in opened:
        watched.close()
    assert [complaint for watched in opened for complaint in watched.complaints] == []
