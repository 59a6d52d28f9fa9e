"""The page says what an expected start rests on, and what is booked, on any width."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect
from tests.local.joined import free_port
from tests.local.test_page import Seen
from tests.local.test_page_jobs import listening
from tests.local.up import Up, eventually

from kant.service.callers import page_token


@pytest.fixture(scope="module")
def kant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """Two nodes: one is booked in an hour, one now; a job runs in that, and one waits for one that runs."""
    home = tmp_path_factory.mktemp("page") / "home"
    with Up(home, listen=f"127.0.0.1:{free_port()}") as up:
        now = up.client.get("/v1/health")["now_us"] / 1e6
        up.client.post("/v1/reservations", {"name": "demo", "gpus": 4, "duration_s": 7200.0})
        up.client.post("/v1/reservations", {"name": "evening", "gpus": 2, "start": now + 7200, "duration_s": 3600.0})
        inside = up.submit("sleep 600", gpus=2, reservation="demo", grace_s=0.1, name="inside")
        runs = up.submit("sleep 600", gpus=4, time_s=600.0, grace_s=0.1, preemptible=False, name="runs")
        assert eventually(lambda: {up.phase(inside), up.phase(runs)} == {"running"})
        up.submit("true", gpus=4, time_s=60.0, name="next")
        yield up
        for row in up.client.get("/v1/jobs", state="waiting,running")["jobs"]:
            up.client.post(up.client.job(row["id"], "cancel"))


@pytest.fixture
def seen(browser: Any, kant: Up) -> Iterator[Seen]:
    found = Seen(browser, listening(kant), page_token(kant.home))
    yield found
    found.close()
    assert found.complaints == []


def test_a_start_says_what_it_rests_on_in_the_list_and_on_the_page_of_the_job(kant: Up, seen: Seen) -> None:
    (row,) = kant.client.get("/v1/eta")["jobs"]
    said = row["rests_on"]["sentence"]
    assert "expected at" in said
    page = seen.tab("Jobs")
    line = page.locator(f"#list-ahead tr[data-job='{row['job']}'] .basis")
    line.wait_for()
    assert line.inner_text().startswith(f"rests on: job {row['rests_on']['jobs'][0]} ends, expected at")
    page.get_by_role("link", name=row["job"], exact=True).click()
    page.locator("#rests-on").wait_for()
    assert "ends, expected at" in page.locator("#rests-on").inner_text()


@pytest.mark.parametrize("width", [1440, 390])
def test_the_map_says_which_gpus_are_booked_by_whom_and_from_when(kant: Up, seen: Seen, width: int) -> None:
    seen.page.set_viewport_size({"width": width, "height": 844})
    page = seen.tab("Map")
    text = page.locator("#map-booked").inner_text()
    demo, evening = kant.client.get("/v1/reservations")["reservations"]
    assert f"demo ({demo['user']}, {demo['gpus']} GPUs, until " in text and f"evening ({evening['user']}" in text
    assert "from " in text.partition("evening")[2]
    node, devices = next(iter(evening["place"].items()))
    said = page.locator(".said")

    def selects() -> bool:
        """Nothing is selected where the map is drawn anew between the focus and the keys."""
        page.locator(".stack").focus()
        for key in ["ArrowDown"] + ["ArrowRight"] * int(node[-1]) + ["ArrowDown"] * int(devices.split(",")[0]):
            page.keyboard.press(key)
        page.wait_for_timeout(100)
        return bool(said.inner_text())

    assert eventually(selects)
    expect(said).to_contain_text("booked: evening")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    if folder := os.environ.get("KANT_SHOTS"):
        page.screenshot(path=Path(folder) / f"booked-map-{width}.png", full_page=True)
    page.locator("#when").press("Home")
    expect(page.locator("#map-booked")).to_have_count(0)  # what was booked then nobody knows


def test_what_is_booked_stands_on_a_line_of_time_and_fits_the_window(kant: Up, seen: Seen) -> None:
    for width in (1440, 1024, 390):
        seen.page.set_viewport_size({"width": width, "height": 844})
        page = seen.tab("Jobs")
        page.locator("#booked tbody tr").nth(1).wait_for()
        page.locator("#list-ahead .basis").wait_for()
        first, second = page.locator("#booked tbody tr").all()
        rows = kant.client.get("/v1/reservations")["reservations"]
        assert [row["name"] for row in rows] == ["demo", "evening"]
        assert rows[0]["jobs"][0] in first.inner_text() and "none" in second.inner_text()
        bars = [row.locator(".bookline i").bounding_box() for row in (first, second)]
        line = first.locator(".bookline").bounding_box()
        assert bars[0]["x"] == pytest.approx(line["x"], abs=2), "it lasts already"
        assert bars[1]["x"] == pytest.approx(line["x"] + line["width"] * 2 / 3, abs=3), "it begins when the first ends"
        assert all(bar["height"] >= 10 for bar in bars)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        wide = "[...document.querySelectorAll('.scroll')].filter(one => one.scrollWidth > one.clientWidth).length"
        assert page.evaluate(wide) == 0
        if folder := os.environ.get("KANT_SHOTS"):
            page.screenshot(path=Path(folder) / f"booked-{width}.png", full_page=True)
            page.get_by_role("link", name=kant.client.get("/v1/eta")["jobs"][0]["job"], exact=True).click()
            page.locator("#rests-on").wait_for()
            page.screenshot(path=Path(folder) / f"basis-{width}.png", full_page=True)
