"""The machine's own browser, driven by Playwright; never one that is downloaded."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from tests.patience import PATIENCE_S

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip

expect.set_options(timeout=1e3 * PATIENCE_S)

KEPT: dict[Browser, ExitStack] = {}
"""The browser of this process, if it has one now, and what closes it."""

IDLE: WeakKeyDictionary[Browser, list[Page]] = WeakKeyDictionary()


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


def kept() -> Browser:
    """The browser of this process, for all tests of pages that follow each other: to start one is dear."""
    if not KEPT:
        closes = ExitStack()
        KEPT[closes.enter_context(launched())] = closes
    return next(iter(KEPT))


def let_go() -> None:
    """Close it, if there is one. While it is open no coroutine can run in this thread."""
    while KEPT:
        KEPT.popitem()[1].close()


@contextmanager
def lent(
    browser: Browser, *, width: int = 1280, height: int = 900, color_scheme: Any = "light",
    reduced_motion: Any = "no-preference", **listeners: Callable[[Any], object],
) -> Iterator[Page]:  # fmt: skip
    """A page as a new one is, with `listeners` to its events: `console=said.append`.

    Whoever comes next gets it again: a new one is a new process of the browser, dearer than most tests of a page.
    """
    idle = IDLE.setdefault(browser, [])
    page = idle.pop() if idle else browser.new_page()
    try:
        page.set_default_timeout(1e3 * PATIENCE_S)
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme=color_scheme, reduced_motion=reduced_motion)
        for event, listener in listeners.items():
            page.on(event, listener)  # type: ignore[call-overload]
        yield page
        for event, listener in listeners.items():
            page.remove_listener(event, listener)
        page.evaluate("localStorage.clear(); sessionStorage.clear()")
        page.context.clear_cookies()
        page.goto("about:blank")
    except BaseException:
        page.close()
        raise
    idle.append(page)


@contextmanager
def opened(browser: Browser, address: str, **options: Any) -> Iterator[Page]:
    """A page whose views are drawn. At the end nothing may have complained, and nothing been asked of anybody else."""
    said: list[str] = []
    asked: list[str] = []
    options |= {
        "console": lambda message: said.append(f"{message.type}: {message.text}"),
        "pageerror": lambda error: said.append(f"error: {error}"),
        "dialog": lambda dialog: (said.append(f"dialog: {dialog.message}"), dialog.dismiss()),
        "request": lambda request: asked.append(request.url),
    }
    with lent(browser, **options) as page:
        page.goto(address)
        page.wait_for_selector("html[data-ready]")
        yield page
        assert page.evaluate("document.documentElement.dataset.errors") == "0"
    assert said == []
    home = address.split("#")[0]
    origin = "/".join(home.split("/")[:3])
    assert all(url.startswith(home if home.startswith("file:") else origin) for url in asked), asked
