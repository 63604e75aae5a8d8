"""A real browser for tests of pages."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from playwright.sync_api import sync_playwright

from tests.support.processes import needs_command

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser


@contextmanager
def chromium() -> Iterator[Browser]:
    """The distribution's Chromium, without a window; skips where there is none."""
    path = needs_command("chromium", "chromium")
    # Root's processes cannot have Chromium's sandbox; the pages are our own.
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=options)
        try:
            yield browser
        finally:
            browser.close()
