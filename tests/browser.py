"""The machine's own browser, driven by Playwright; never one that is downloaded."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from tests.patience import PATIENCE_S

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip

expect.set_options(timeout=1e3 * PATIENCE_S)


@contextmanager
def launched() -> Iterator[Browser]:
    """A headless browser. Where the machine has none the test is skipped, or fails with CI=true."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        sentence = f"no browser on PATH (one of {', '.join(BROWSERS)})"
        if os.environ.get("CI") == "true":
            pytest.fail(sentence, pytrace=False)
        pytest.skip(sentence)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=list(ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(browser: Browser, address: str, *, width: int = 1280, height: int = 900, **options: Any) -> Iterator[Page]:
    """A page whose views are drawn. At the end nothing may have complained, and nothing been asked of anybody else."""
    context = browser.new_context(viewport={"width": width, "height": height}, **options)
    said: list[str] = []
    asked: list[str] = []
    try:
        page = context.new_page()
        page.set_default_timeout(1e3 * PATIENCE_S)
        page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: said.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (said.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(address)
        page.wait_for_selector("html[data-ready]")
        yield page
        assert page.evaluate("document.documentElement.dataset.errors") == "0"
    finally:
        context.close()
    assert said == []
    home = address.split("#")[0]
    origin = "/".join(home.split("/")[:3])
    assert all(url.startswith(home if home.startswith("file:") else origin) for url in asked), asked
