"""What-if on the page of a Kant that runs, in a real browser."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.browser import lent
from tests.cli.command import kant as command
from tests.local.test_page import check_access
from tests.local.up import Up, eventually

from kant.model.tenant import Queue, QueueConfig, Quota

REFUSED = "the server responded with a status of 400"  # the browser says it itself


@pytest.fixture(scope="module")
def kant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """Two nodes, of which two jobs have all; ten jobs of two queues wait."""
    queues = tuple(Queue(name, quotas=(Quota(nominal=4000),)) for name in ("vision", "speech"))
    with Up(tmp_path_factory.mktemp("up") / "home", queue_config=QueueConfig(queues), listen="127.0.0.1:0") as up:
        full = [up.submit("sleep 600", gpus=4, time_s=7200, queue=queue) for queue in ("vision", "speech")]
        assert eventually(lambda: all(up.phase(job) == "running" for job in full))
        for i in range(10):
            up.submit("true", gpus=1 + i % 4, time_s=600 * (1 + i), queue="vision" if i % 3 else "speech")
        yield up
        for job in full:
            up.client.post(up.client.job(job, "cancel"))


@pytest.fixture(scope="module")
def page(browser: Browser, kant: Up) -> Iterator[Page]:
    """The view of a browser; nothing may be said on its console."""
    said: list[str] = []
    with lent(
        browser, width=1360,
        console=lambda message: said.append(message.text) if message.type == "error" else None,
        pageerror=lambda error: said.append(str(error)),
    ) as page:  # fmt: skip
        page.goto(command("page", "--home", kant.home).out.strip())
        page.get_by_role("tab", name="What if").click()
        yield page
    assert [text for text in said if REFUSED not in text] == []


def shot(page: Page, name: str) -> None:
    """Keep a picture where KANT_SHOTS says."""
    if folder := os.environ.get("KANT_SHOTS"):
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


def test_both_futures_stand_beside_each_other(page: Page) -> None:
    page.get_by_role("button", name="Try it").click()
    expect(page.get_by_role("alert")).to_have_text("Fill in at least one change.")
    page.get_by_label("GPUs of each pod").fill("4")
    page.get_by_label("runs for").fill("3h")
    page.get_by_label("queue").first.select_option("vision")
    page.locator("[name=quotaOf]").select_option(label="speech")
    page.locator("[name=quotaBy]").fill("+4")
    page.locator("[name=nodes]").fill("1")
    page.keyboard.press("Enter")
    title = page.get_by_role("heading", name="If whatif-1 is submitted")
    expect(title).to_be_visible()
    expect(title).to_be_focused()
    expect(page.locator("#submitted")).to_contain_text("whatif-1 starts")
    expect(page.locator("#sources")).to_contain_text("12 as stated by their owners")
    rows = page.locator("#waits-table tbody th")
    assert rows.all_inner_texts()[:3] == ["everybody", "queue speech", "queue vision"]
    expect(page.get_by_role("img", name="Share of the jobs")).to_have_attribute("aria-label", re.compile("The mean is"))
    assert page.get_by_role("region", name="Those that gain most").locator("tbody tr").count() >= 1
    check_access(page)
    shot(page, "whatif-light")
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    shot(page, "whatif-dark")
    page.set_viewport_size({"width": 420, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    shot(page, "whatif-narrow")
    page.set_viewport_size({"width": 1360, "height": 900})
    page.evaluate("document.documentElement.dataset.theme = 'light'")


def test_a_refusal_is_said_and_a_question_may_be_taken_back(page: Page) -> None:
    page.get_by_role("button", name="Clear").click()
    expect(page.locator("#answer")).to_have_count(0)
    page.get_by_label("node, leaf or spine").fill("node-99")
    page.get_by_role("button", name="Try it").click()
    expect(page.get_by_role("alert")).to_contain_text("--drain: expected a node, leaf")
    page.get_by_label("node, leaf or spine").fill("node-00000")
    page.locator("[name=profile]").select_option("easy")
    page.get_by_role("button", name="Try it").click()
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("button", name="Try it")).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)


def test_one_click_leads_from_what_starts_a_job_now_to_what_that_means_for_all(page: Page) -> None:
    page.evaluate("location.hash = '#jobs/3'")
    now_if = page.locator("#now-if")
    expect(now_if.get_by_role("heading", name=re.compile("^Starts now"))).to_be_visible()
    change = now_if.get_by_role("listitem").first
    expect(change).to_contain_text("stops")
    job = re.match(r"job (\d+) stops", change.inner_text())
    assert job is not None
    shot(page, "starts-now-if")
    change.get_by_role("button").click()
    expect(page.get_by_role("heading", name=f"If job {job[1]} is cancelled")).to_be_visible()
    assert page.get_by_role("region", name="Those that gain most").locator("tbody tr").count() >= 1
    shot(page, "starts-now-if-tried")
