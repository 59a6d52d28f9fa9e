"""The jobs of the page in a real browser: in the queue's order, with addresses, on any width; and a form for tokens."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from tests.local.joined import free_port
from tests.local.test_page import Seen
from tests.local.up import Up, eventually
from tests.patience import PATIENCE_S

from kant.local.power import PowerCaps
from kant.service.callers import page_token
from kant.workload.tenants_file import read_tenants

WAITING = 60
BUDGETS = """
[[queue]]
name = "vision"
[queue.budget]
soft = 0.001
user_hard = 0.001
"""


@pytest.fixture(scope="module")
def kant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """Two nodes that are busy, and more jobs that wait than a page has."""
    home = tmp_path_factory.mktemp("page") / "home"
    with Up(home, listen=f"127.0.0.1:{free_port()}") as up:
        runs = up.submit("sleep 600", gpus=8, name="a-long-name-" * 4, grace_s=0.1, preemptible=False)
        assert eventually(lambda: up.phase(runs) == "running")
        up.submit("true", gpus=1, array=list(range(WAITING)), name="sweep")
        up.submit("true", gpus=2, name="first", priority=5)
        up.submit("true", hold=True, name="kept")
        yield up
        for row in up.client.get("/v1/jobs", limit=1000, state="held,waiting,running")["jobs"]:
            up.client.post(up.client.job(row["id"], "cancel"))


@pytest.fixture
def seen(browser: Any, kant: Up) -> Iterator[Seen]:
    found = Seen(browser, listening(kant), page_token(kant.home))
    yield found
    found.close()
    assert found.complaints == []


def listening(kant: Up) -> str:
    """The address of a Kant."""
    return str(kant.client.get("/v1/whoami")["address"])


def ids(page: Any) -> list[str]:
    """The jobs that wait, as the page lists them."""
    return [row.get_attribute("data-job") for row in page.locator("#list-ahead tbody tr").all()]


def test_who_waits_stands_in_the_queues_order_and_each_says_why(kant: Up, seen: Seen) -> None:
    page = seen.tab("Jobs")
    page.get_by_role("button", name="Waiting", exact=True).click()
    page.locator("#list-ahead tbody tr").nth(49).wait_for()
    order = [row["id"] for row in kant.client.get("/v1/waiting", limit=100)["jobs"]]
    assert ids(page) == order[:50]
    assert page.locator("#list-ahead tr[data-job]").first.inner_text().split()[1] == "first"
    page.get_by_role("button", name="After these").click()
    page.locator(f"#list-ahead tr[data-job='{order[50]}']").wait_for()
    assert ids(page) == order[50:]
    assert page.locator("#list-ahead td.why").all_inner_texts() and "" not in page.locator("td.why").all_inner_texts()
    held = page.locator("#list-ahead tbody tr").last
    assert "held" in held.inner_text() and "kant release" in held.inner_text()


def test_a_job_has_an_address_and_back_goes_back(kant: Up, seen: Seen) -> None:
    page, job = seen.tab("Jobs"), kant.client.get("/v1/waiting")["jobs"][0]["id"]
    page.get_by_role("link", name=job, exact=True).click()
    page.get_by_role("heading", name=f"Job {job}").wait_for()
    assert page.url.endswith(f"#jobs/{job}")
    page.reload()
    page.get_by_role("heading", name=f"Job {job}").wait_for()
    page.go_back()
    page.locator("#list-ahead tbody tr").first.wait_for()
    page.go_forward()
    page.get_by_role("heading", name=f"Job {job}").wait_for()
    page.locator("#back").click()
    page.locator("#list-ahead tbody tr").first.wait_for()
    seen.tab("Map")
    page.go_back()
    page.locator("#list-ahead tbody tr").first.wait_for()


def test_every_view_fits_the_window(seen: Seen) -> None:
    for width in (1440, 1024, 390):
        seen.page.set_viewport_size({"width": width, "height": 844})
        for tab in ("Overview", "Map", "Jobs", "Queues"):
            page = seen.tab(tab)
            page.locator("main [role=tabpanel] > *").first.wait_for()
            if tab == "Jobs":
                page.locator("#list-ahead tbody tr").first.wait_for()
                page.locator("#list-runs tbody tr").first.wait_for()
                boxes = [row.bounding_box() for row in page.locator("tr[data-job]").all()[:3]]
                assert all(box["x"] >= 0 and box["x"] + box["width"] <= width for box in boxes)
                assert (boxes[0]["height"] > 60) == (width == 390), "on a phone each job is a card"
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            wide = "[...document.querySelectorAll('.scroll')].filter(one => one.scrollWidth > one.clientWidth).length"
            assert page.evaluate(wide) == 0, tab


def test_the_map_fills_the_window(seen: Seen) -> None:
    seen.page.set_viewport_size({"width": 1440, "height": 900})
    canvas = seen.tab("Map").locator(".stack canvas").first
    canvas.wait_for()
    assert eventually(lambda: canvas.bounding_box()["width"] > 500 and canvas.bounding_box()["height"] > 300)
    high = canvas.bounding_box()["height"]
    seen.page.set_viewport_size({"width": 1440, "height": 600})
    assert eventually(lambda: canvas.bounding_box()["height"] < high)


def test_a_job_is_submitted_from_the_page(kant: Up, seen: Seen) -> None:
    form = seen.page.locator("#submit")
    form.locator("summary").click()
    form.get_by_label("Command").fill("echo from here; pwd")
    home, queue = form.get_by_label("Folder"), form.get_by_label("Into queue")
    assert (home.input_value(), queue.input_value()) == (pwd.getpwuid(os.getuid()).pw_dir, "default")
    home.fill(str(kant.home))
    form.get_by_label("GPUs").fill("0")
    form.get_by_label("Limit, minutes").fill("2")
    form.get_by_label("Title").fill("by-hand")
    form.get_by_role("button", name="Submit").click()
    job = form.locator("[role=status] a").inner_text()
    found = kant.job(job)
    asked = (found["command"], found["workdir"], found["time_s"], found["job"]["name"], found["job"]["gpus"])
    assert asked == (["sh", "-c", "echo from here; pwd"], str(kant.home), 120.0, "by-hand", 0)
    assert set(found["env"]) == {"HOME", "PATH"}
    seen.page.reload()
    form.locator("summary").click()
    assert home.input_value() == str(kant.home), "it is remembered"
    kant.client.post(kant.client.job(job, "cancel"))


def test_the_page_shows_budgets_and_says_which_are_used_up(browser: Any, tmp_path: Path) -> None:
    (tmp_path / "queues.toml").write_text(BUDGETS)
    options: dict[str, Any] = {"queue_config": read_tenants(tmp_path / "queues.toml"), "power": PowerCaps(700, 0, 350)}
    with Up(tmp_path / "home", "1x4", listen=f"127.0.0.1:{free_port()}", **options) as up:
        up.submit("sleep 600", gpus=2, queue="vision", grace_s=0.1)
        late = up.submit("true", gpus=1, queue="vision")
        assert eventually(lambda: "starts no job before" in str(up.client.get("/v1/waiting")["jobs"]))
        seen = Seen(browser, listening(up), page_token(up.home))
        page, banner = seen.page, seen.page.locator(".notice")
        banner.nth(1).wait_for()
        said = banner.all_inner_texts()
        assert "Queue vision has used up the soft budget: its jobs go after all others." in said
        assert any("in queue vision has used up the hard budget: nothing more starts before 20" in one for one in said)
        assert "2 of 4 GPUs free; power for 0 more" in page.locator("#free").inner_text()
        page.set_viewport_size({"width": 390, "height": 844})
        page.locator("#submit summary").click()
        axe = Axe()
        views = {"Jobs": "#submit", "Queues": "#budgets", "Overview": "#so-far", "Map": ".stack canvas"}
        for tab, part in {**views, "Plans": "main p", "What if": "form", "job": "#waited"}.items():
            if tab == "job":
                page.goto(page.url.partition("#")[0] + f"#jobs/{late}")
            else:
                seen.tab(tab)
            page.locator(part).first.wait_for()
            assert page.evaluate("document.documentElement.scrollWidth") <= 390
            found = axe.run(page).response["violations"]
            assert not found, (tab, [(one["id"], [node["html"] for node in one["nodes"]]) for one in found])
        seen.tab("Queues").locator("#budgets tbody tr").nth(1).wait_for()
        rows = page.locator("#budgets tbody tr").all_inner_texts()
        assert len(rows) == 2 and all("is used up" in row for row in rows)
        seen.close()
        assert seen.complaints == [] and up.phase(late) == "waiting"


def test_who_has_no_token_is_asked_for_it(kant: Up, browser: Any, tmp_path: Path) -> None:
    page = browser.new_page()
    page.set_default_timeout(1e3 * PATIENCE_S)
    page.goto(f"http://{listening(kant)}/#jobs")
    page.get_by_label("Token").fill("wrong")
    page.get_by_role("button", name="Sign in").click()
    page.get_by_label("Token").fill(page_token(kant.home))
    page.get_by_role("button", name="Sign in").click()
    page.locator("#list-ahead tbody tr").first.wait_for()
    assert not page.get_by_label("Token").count()
    page.close()


def test_the_page_opens_on_jobs_and_says_what_is_free_and_where_jobs_run(kant: Up, seen: Seen) -> None:
    page = seen.page
    (row,) = kant.client.get("/v1/jobs", state="running")["jobs"]
    run = page.locator(f"#list-runs tr[data-job='{row['id']}']")
    run.wait_for()
    places = [f"{node}: {gpus}" for node, gpus in row["nodes"].items()]
    assert page.locator("[role=tab][aria-selected=true]").inner_text() == "Jobs"
    assert run.locator("[data-name=on]").inner_text() == "; ".join(places)
    assert run.locator("[data-name=left]").inner_text() == "\N{EN DASH}", "it has no limit"
    held = kant.client.get("/v1/top")["nodes"]
    free = [one["gpus"] - one["gpus_used"] for one in held]
    expected = f"{sum(free):g} of {sum(one['gpus'] for one in held)} GPUs free"
    most = f", at most {max(free):g} on one node" if max(free) else ""
    assert eventually(lambda: page.locator("#free").inner_text() == expected + most)


def test_jobs_are_found_by_name_and_mine_are_mine(kant: Up, seen: Seen) -> None:
    page = seen.page
    page.get_by_label("Name").fill("fir*")
    page.get_by_label("Name").press("Enter")
    wanted = [row["id"] for row in kant.client.get("/v1/waiting", name="fir*")["jobs"]]
    assert len(wanted) == 1 and eventually(lambda: ids(page) == wanted)
    page.locator("#list-runs .empty").wait_for()
    page.get_by_label("Name").fill("")
    page.get_by_label("Name").press("Enter")
    page.get_by_label("User").fill("nobody")
    page.get_by_label("User").press("Enter")
    page.locator("#list-ahead .empty").wait_for()
    assert page.locator("#mine").get_attribute("aria-pressed") == "false", "an operator looks at all jobs first"
    page.locator("#mine").click()
    page.locator("#list-runs tbody tr").first.wait_for()
    assert page.get_by_label("User").input_value() == ""
    page.reload()
    page.locator("#list-runs tbody tr").first.wait_for()
    assert page.locator("#mine").get_attribute("aria-pressed") == "true", "it is remembered"


def test_a_priority_is_set_and_a_run_goes_back_to_the_queue(kant: Up, seen: Seen) -> None:
    page = seen.page
    job = kant.submit("true", hold=True, name="ranked")
    page.goto(page.url.partition("#")[0] + f"#jobs/{job}")
    page.locator("#rank input").fill("7")
    page.locator("#rank button").click()
    assert eventually(lambda: kant.client.get(kant.client.job(job))["job"]["priority"] == 7)
    kant.client.post(kant.client.job(job, "cancel"))
    (run,) = kant.client.get("/v1/jobs", state="running")["jobs"]
    page.goto(page.url.partition("#")[0] + f"#jobs/{run['id']}")
    page.locator("#order-requeue").click()
    page.get_by_role("button", name="Yes, requeue").click()
    attempt = kant.client.job(run["id"])
    assert eventually(lambda: kant.client.get(attempt)["job"]["attempt"] > run["attempt"])
