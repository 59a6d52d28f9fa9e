"""The page of a Kant that runs, in a real browser: it follows what happens, goes back in time and gives orders."""

from __future__ import annotations

import os
import re
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect
from tests.browser import lent
from tests.cli.command import kant as command
from tests.local.joined import free_port
from tests.local.up import Up, asked, eventually

from kant.service.callers import page_token
from kant.service.roles import Role
from kant.service.tokens import change_keys, fresh_token, make_key
from kant.workload.tenants_file import read_tenants

PICTURE = Path(__file__).parents[2] / "docs" / "images" / "up.png"
QUEUES = """
[[queue]]
name = "lab"
[[queue]]
name = "vision"
parent = "lab"
gpus = 12
[[queue]]
name = "speech"
parent = "lab"
gpus = 20
"""
WIDE: dict[str, Any] = {"width": 1360, "height": 860}


class Seen:
    """A page that is open, and what it complained of."""

    def __init__(self, browser: Any, address: str, token: str) -> None:
        self.complaints: list[str] = []
        self._lent = lent(
            browser, **WIDE, console=self._said, pageerror=lambda error: self.complaints.append(str(error))
        )
        self.page = self._lent.__enter__()
        self.page.goto(f"http://{address}/#token={token}")
        self.page.wait_for_selector("html[data-ready=true]")

    def close(self) -> None:
        self._lent.__exit__(None, None, None)

    def _said(self, message: Any) -> None:
        lost = "net::ERR" in message.text  # the browser says so itself when Kant is away
        if message.type in ("error", "warning") and not lost:
            self.complaints.append(message.text)

    def tab(self, name: str) -> Any:
        self.page.get_by_role("tab", name=name, exact=True).click()
        return self.page

    def job(self, job: str) -> Any:
        return self.page.locator(f"tr[data-job='{job}']")


def test_the_page_follows_and_orders(browser: Any, tmp_path: Path) -> None:
    """One long visit: a browser and a Kant take longer to start than all that is done here."""
    address = f"127.0.0.1:{free_port()}"
    (tmp_path / "queues.toml").write_text(QUEUES)
    queue_config = read_tenants(tmp_path / "queues.toml")
    home = tmp_path / "home"
    options: dict[str, Any] = {"cluster": "8x4", "queue_config": queue_config, "listen": address}
    kant = Up(home, **options)
    with kant:
        seen = Seen(browser, address, page_token(home))
        page = seen.page
        assert "token" not in page.url
        assert_headers(address)

        # a job appears, and its state changes, without a reload
        seen.tab("Jobs")
        page.get_by_text("No job waits.").wait_for()
        first = kant.submit(
            "echo step 1; echo step 2; sleep 600", gpus=24, queue="speech", name="train", preemptible=False
        )
        page.get_by_role("button", name="Running", exact=True).click()
        seen.job(first).get_by_text("running").wait_for()
        small = kant.submit("sleep 600", gpus=4, queue="vision", name="small")
        blocked = kant.submit("sleep 600", gpus=8, queue="vision", name="next")
        page.get_by_role("button", name="Waiting", exact=True).click()
        row = seen.job(blocked)
        row.get_by_text("not enough free capacity").or_(row.get_by_text("quota")).first.wait_for()
        assert re.search(r"\bwaiting\b.*vision", row.inner_text().replace("\t", " "))

        # the queues, with what is lent and borrowed
        seen.tab("Queues")
        speech = page.locator("tr[data-queue='speech']")
        speech.wait_for()
        for i, text in enumerate(("20", "24", "4", "0")):
            expect(speech.locator("td.n").nth(i)).to_have_text(text)
        vision = page.locator("tr[data-queue='vision']")
        for i, text in enumerate(("12", "4", "0", "4")):
            expect(vision.locator("td.n").nth(i)).to_have_text(text)

        # a job's page: why, history, placement, output
        seen.tab("Jobs")
        page.get_by_role("link", name=blocked, exact=True).click()
        page.locator("#why").wait_for()
        page.get_by_text("Expected start, P50").wait_for()
        page.locator(".told").get_by_text("it arrived in queue vision").wait_for()
        page.locator("#waited").get_by_text("so far").wait_for()
        page.locator("#waited th").get_by_text("quota-lent").wait_for()
        page.locator("#waited .meter").first.wait_for()

        # hold, with a question first, and release
        page.locator("#order-hold").click()
        page.get_by_role("button", name="No").click()
        assert kant.phase(blocked) == "waiting"
        page.locator("#order-hold").click()
        page.get_by_role("button", name="Yes, hold").click()
        page.locator(".jobhead .phase.held").wait_for()
        assert kant.phase(blocked) == "held"
        page.locator("#order-release").click()
        page.locator(".jobhead .phase.waiting").wait_for()
        page.locator(".told").get_by_text("asked to release it").wait_for()

        # who planned what, its effects, what became of it; who wants to order does that where the job is
        where = ("--home", home, "--json")
        assert command("ops", "plan", "--hold", small, *where).code == 1, "it runs: it cannot be held"
        tried = command("ops", "plan", "--priority", f"{blocked}=7", *where).json()
        plan = command("ops", "plan", "--priority", f"{blocked}=-7", *where).json()
        assert command("ops", "apply", plan["plan_id"], "--reason", "a <b>talk</b>", *where).code == 0
        seen.tab("Plans")
        own = page.locator(f"[data-plan='{plan['plan_id']}']")
        expect(own.locator(".phase")).to_have_text("applied")
        expect(own).to_contain_text("a <b>talk</b>")
        expect(page.locator(f"[data-plan='{tried['plan_id']}'] .phase")).to_have_text("planned")
        expect(page.locator(f"[data-plan='{tried['plan_id']}'] .then")).to_contain_text("→")
        expect(page.locator("[data-plan]").last).to_contain_text(f"Not possible: job {small} is running")
        expect(page.locator("#audit tbody tr")).to_have_count(5)
        assert page.locator("#panel-plans form").count() == 0
        check_access(page)
        if (folder := os.environ.get("KANT_PICTURES")) is not None:
            page.screenshot(path=f"{folder}/plans.png")
        seen.tab("Jobs")
        page.locator("#back").click()
        page.get_by_role("button", name="Running", exact=True).click()
        page.get_by_role("link", name=first, exact=True).click()
        page.locator("#log").get_by_text("step 2").wait_for()
        expect(page.locator(".cells i.own")).to_have_count(24)
        expect(page.locator(".cells")).to_have_count(6)
        check_access(page)
        # back in time to before the job, and forward to the present
        page.locator("#when").focus()
        page.keyboard.press("Home")
        page.get_by_text("As it was at the moment of the time bar.").wait_for()
        assert page.locator("#now").get_attribute("aria-pressed") == "false"
        seen.tab("Overview")
        expect(page.locator("#moment")).to_contain_text("0 of 32")
        page.locator("#now").click()
        page.locator("#moment").get_by_text("28 of 32").wait_for()
        page.locator("#causes th").get_by_text("quota-lent").wait_for()
        check_access(page)
        page.set_viewport_size({"width": 400, "height": 800})
        fits = "document.documentElement.scrollWidth <= 400"  # charts follow the width a frame later
        assert eventually(lambda: page.evaluate(fits))
        for part in ("#clock", "#now"):
            box = page.locator(part).bounding_box()
            assert box["x"] + box["width"] <= 400, part
        page.set_viewport_size(WIDE)
        look_as_a_viewer(browser, address, home, first)

        # the connection is lost, and regained from a Kant that was killed and started again
        kant.kill()
        page.get_by_text("The connection to Kant is lost").wait_for()
    again = Up(home, **options)
    with again:
        page.get_by_text("The connection to Kant is lost").wait_for(state="hidden")
        seen.tab("Jobs")
        page.locator("#back").click()
        page.get_by_role("button", name="Running", exact=True).click()
        seen.job(first).get_by_text("running").wait_for()

        # the time before the restart is there again, and the bar has a mark at the restart
        seen.tab("Overview")
        page.locator(".when i").wait_for(state="attached")
        page.locator("#when").focus()
        page.keyboard.press("Home")
        page.locator("#moment").get_by_text("0 of 32").wait_for()
        page.fill("#when", str(page.evaluate(JUST_BEFORE)))
        page.locator("#moment").get_by_text("28 of 32").wait_for()
        assert page.locator("#now").get_attribute("aria-pressed") == "false"
        page.locator("#now").click()

        # and a job is withdrawn from the page
        seen.tab("Jobs")
        page.get_by_role("link", name=first, exact=True).click()
        page.locator("#order-cancel").click()
        page.get_by_role("button", name="Yes, cancel").click()
        page.locator(".jobhead .phase.cancelled").wait_for()
        for job in (small, blocked):
            again.client.post(again.client.job(job, "cancel"))
        again.over(first, small, blocked)
        assert seen.complaints == []
        seen.close()


def look_as_a_viewer(browser: Any, address: str, home: Path, job: str) -> None:
    """Who may only ask sees the job, and neither its command and output nor anything that orders."""
    token = fresh_token()
    change_keys(home / "tokens.toml", lambda keys: (*keys, make_key(token, "eve", Role.VIEWER, ())))
    seen = Seen(browser, address, token)
    page = seen.tab("Jobs")
    page.get_by_role("link", name=job, exact=True).click()
    page.locator(".jobhead .phase.running").wait_for()
    page.locator(".cells").first.wait_for()
    assert page.locator("#order-cancel, #order-hold").count() == 0
    words = page.locator("main").inner_text()
    assert "sleep 600" not in words and "step 2" not in words
    assert seen.complaints == []
    seen.close()


def test_a_tenant_pages_through_its_jobs_and_reads_as_they_write(browser: Any, tmp_path: Path) -> None:
    """It sees what its own jobs run and write, and may order them; of others it sees that they are there."""
    home = tmp_path / "home"
    (tmp_path / "queues.toml").write_text(QUEUES)
    queue_config, token = read_tenants(tmp_path / "queues.toml"), fresh_token()
    with Up(home, cluster="2x4", queue_config=queue_config, listen=f"127.0.0.1:{free_port()}") as kant:
        change_keys(home / "tokens.toml", lambda keys: (*keys, make_key(token, "ben", Role.TENANT, ("vision",))))
        until = "while [ ! -e {} ]; do sleep 0.05; done; echo {}"
        script = f"echo one; {until.format('go', 'two')}; {until.format('end', 'three')}"
        other = kant.submit("echo secret; sleep 600", gpus=1, queue="speech", name="other", preemptible=False)
        writes, stays = (kant.submit(run, gpus=1, queue="vision", name="own") for run in (script, "sleep 600"))
        assert eventually(lambda: {kant.phase(job) for job in (other, writes, stays)} == {"running"})
        wish = asked(home, "exit 0", gpus=1, queue="vision", hold=True, array=list(range(57)))
        held = kant.client.post("/v1/jobs", wish)["jobs"]
        seen = Seen(browser, kant.client.get("/v1/whoami")["address"], token)

        # a list of 60 jobs, 50 at a time, the latest first
        page = seen.tab("Jobs")
        for job in (writes, stays):  # which others submitted into its queue
            seen.job(job).wait_for()
        assert seen.job(other).count() == 0 and page.locator("#mine").get_attribute("aria-pressed") == "true"
        page.locator("#mine").click()
        seen.job(other).wait_for()
        page.get_by_role("button", name="All", exact=True).click()
        rows = page.locator("#list-all tbody tr")
        later, earlier = (page.get_by_role("button", name=name, exact=True) for name in ("Later", "Earlier"))
        seen.job(held[-1]).wait_for()
        expect(rows).to_have_count(50)
        assert later.is_disabled() and seen.job(other).count() == 0
        earlier.click()
        seen.job(other).wait_for()
        expect(rows).to_have_count(10)
        assert earlier.is_disabled() and seen.job(held[-1]).count() == 0
        later.click()
        seen.job(held[-1]).wait_for()
        expect(rows).to_have_count(50)

        # the output of its own job, as that comes
        earlier.click()
        page.get_by_role("link", name=writes, exact=True).click()
        log = page.locator("#log")
        log.get_by_text("one").wait_for()
        assert "two" not in log.inner_text()
        (home / "go").touch()
        log.get_by_text("two").wait_for()
        page.locator(".jobhead .phase.running").wait_for()
        (home / "end").touch()
        log.get_by_text("three").wait_for()
        page.locator(".jobhead .phase.finished").wait_for()
        assert script in page.locator("main").inner_text()

        # another tenant's job: that it runs and where, and nothing else
        page.locator("#back").click()
        page.get_by_role("button", name="Running", exact=True).click()
        page.get_by_role("link", name=other, exact=True).click()
        page.locator(".jobhead .phase.running").wait_for()
        page.locator(".cells").first.wait_for()
        assert page.locator("#order-cancel, #order-hold, #log").count() == 0
        assert "secret" not in page.locator("main").inner_text()
        order = """job => fetch(`/v1/jobs/${job}/cancel`, {method: "POST",
          headers: {Authorization: `Bearer ${sessionStorage.getItem("kant-token")}`}}).then((said) => said.status)"""
        assert page.evaluate(order, other) == 403
        assert kant.phase(other) == "running"

        # and one of its own is withdrawn
        page.locator("#back").click()
        page.get_by_role("link", name=stays, exact=True).click()
        page.locator("#order-cancel").click()
        page.get_by_role("button", name="Yes, cancel").click()
        page.locator(".jobhead .phase.cancelled").wait_for()
        assert [each for each in seen.complaints if "403" not in each] == []
        seen.close()
        for job in (other, held[0].partition("_")[0]):
            kant.client.post(kant.client.job(job, "cancel"))
        kant.over(other, *held)


def assert_headers(address: str) -> None:
    """What a browser is told about the page; and pages from elsewhere stay outside."""
    for path in ("/", "/page.js", "/page.css", "/icon.svg"):
        with urllib.request.urlopen(f"http://{address}{path}") as found:
            policy = found.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "frame-ancestors 'none'" in policy
            assert found.headers["Cache-Control"] == "no-store"
            assert found.headers["X-Content-Type-Options"] == "nosniff"
    for name in ("Host", "Origin"):
        request = urllib.request.Request(f"http://{address}/", headers={name: "http://elsewhere.example"})
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(request)
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"http://{address}/v1/record")


JUST_BEFORE = """() => {
  const [when, mark] = [document.querySelector('#when'), document.querySelector('.when i')];
  return +when.min + Number(mark.style.getPropertyValue('--at')) * (when.max - when.min) - 1000;
}"""
NAMELESS = """() => [...document.querySelectorAll('button, input, select, [role=region], [role=img], a[href]')]
  .filter((e) => e.offsetParent !== null)
  .filter((e) => !(e.innerText?.trim() || e.ariaLabel || e.labels?.length || e.title))
  .map((e) => e.outerHTML.slice(0, 120))"""
CONTRAST = """() => {
  const parse = (c) => c.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
  const under = (e) => { for (; e; e = e.parentElement) {
    const c = parse(getComputedStyle(e).backgroundColor); if ((c[3] ?? 1) === 1) return c; } return [255, 255, 255]; };
  const bad = [];
  for (const e of document.querySelectorAll('main *, header *')) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
    if (!own || e.offsetParent === null || e.disabled || e.closest('.said') || e.closest('canvas')) continue;
    const [a, b] = [light(parse(getComputedStyle(e).color)), light(under(e))].sort((x, y) => y - x);
    if ((a + .05) / (b + .05) < 4.5) bad.push(e.outerHTML.slice(0, 120) + ' ' + ((a + .05) / (b + .05)).toFixed(2));
  }
  return bad;
}"""


def check_access(page: Any) -> None:
    """Everything that can be used has a name, text can be read in both themes, one tab is open."""
    assert page.evaluate(NAMELESS) == []
    assert page.locator("h1").count() == 1
    assert page.locator("[role=tab][aria-selected=true]").count() == 1
    assert page.locator("[role=tabpanel]").count() == 1
    for _ in range(3):
        assert page.evaluate(CONTRAST) == []
        page.locator("#theme").click()


@pytest.mark.skipif(not os.environ.get("KANT_PICTURES"), reason="KANT_PICTURES=1 makes the pictures of the docs anew")
def test_the_pictures_of_the_documentation(browser: Any, tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    (tmp_path / "queues.toml").write_text(QUEUES.replace("12", "40").replace("20", "24"))
    queue_config = read_tenants(tmp_path / "queues.toml")
    with Up(tmp_path / "home", cluster="16x4", queue_config=queue_config, listen=address) as kant:
        jobs = []
        for i, gpus in enumerate((8, 1, 16, 2, 4, 1, 6, 12, 1, 8, 4, 16, 1, 8, 2, 24, 4, 2, 8, 6)):
            queue, name = (("vision", "segment"), ("speech", "wav2vec"), ("vision", "detect"))[i % 3]
            lasts = (1, 3, 600, 600, 600)[i % 5]
            script = f"for i in 1 2 3 4; do echo epoch $i loss 0.$((9 - i))7; sleep {lasts / 4}; done"
            wish = {"time_s": 1200.0 + 900 * (i % 4), "preemptible": False, "workdir": "/"}
            jobs.append(kant.submit(script, gpus=gpus, queue=queue, name=f"{name}-{i}", **wish))
            time.sleep(0.3)
        time.sleep(3)
        seen = Seen(browser, address, page_token(tmp_path / "home"))
        page = seen.page
        PICTURE.parent.mkdir(exist_ok=True)
        for name, tab in (("up-map", "Map"), ("up", "Jobs")):
            seen.tab(tab)
            time.sleep(1.5)
            page.screenshot(path=str(PICTURE.with_name(f"{name}.png")))
        page.get_by_role("link", name=jobs[15], exact=True).click()  # of 24 GPUs
        page.locator("#why").wait_for()
        time.sleep(1)
        page.screenshot(path=str(PICTURE.with_name("up-job.png")))
        assert seen.complaints == []
        for job in jobs:
            kant.client.post(kant.client.job(job, "cancel"))
        kant.over(*jobs)
