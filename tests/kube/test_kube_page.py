"""The page of a Kant on Kubernetes: its data are those of the state, and only the loopback of the pod gets them."""

from __future__ import annotations

import asyncio
import json
import os
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import quote

import pytest
from aiohttp import web
from tests.browser import launched
from tests.kube.api import Api
from tests.kube.control_plane import ControlPlane
from tests.kube.live import bound, install, queue, says
from tests.kube.objects import make_gang, make_node, make_pod
from tests.kube.processes import free_port
from tests.kube.running import KantProcess

from kant.cli.kube import kube_app
from kant.kube.page import routes
from kant.kube.shown import Shown
from kant.model.errors import InputError


def ask(url: str, **headers: str) -> tuple[int, Any]:
    """The code and the body, decoded where it is JSON."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=20) as reply:
            code, kind, body = reply.status, reply.headers["Content-Type"], reply.read()
    except urllib.error.HTTPError as error:
        code, kind, body = error.code, error.headers["Content-Type"], error.read()
    return code, json.loads(body) if kind.startswith("application/json") else body.decode()


def test_the_page_and_its_data(plane: ControlPlane) -> None:
    port = free_port()

    async def story() -> None:
        async with Api(plane) as api:
            await install(api)
            await api.create_all([make_node("n0"), make_node("n1"), queue("vision", 8)])
            options = ("--no-leader-election", "--listen", f"127.0.0.1:{port}", "--page")
            process = KantProcess(plane, *options, user="admin")
            try:
                await process.says("state built", within_s=120)
                labels = {"scheduling.kant.dev/queue": "vision"}
                await api.create_all(make_gang("train", 2, 4, labels=labels))
                await api.until(lambda pods: len(bound(pods)) == 2)
                await api.create(make_pod("late", 1, labels=labels))
                await api.until(lambda pods: says(pods, "late", "quota"))
                await asyncio.to_thread(look, f"http://127.0.0.1:{port}")
                await asyncio.to_thread(browse, f"http://127.0.0.1:{port}")
            finally:
                process.stop()

    asyncio.run(story())


def look(url: str) -> None:
    def get(path: str) -> Any:
        code, found = ask(url + path)
        assert code == 200, (path, found)
        return found

    assert '<script type="application/json" id="kant-data">{"live": true}</script>' in get("/")
    record = get("/v1/record")
    assert (record["kind"], record["complete"], record["cluster"]["names"]) == ("kubernetes", True, ["n0", "n1"])
    assert record["jobs"]["id"] == ["default/train", "default/late"] and record["jobs"]["milli"] == [8000, 1000]
    assert [1 for end in record["intervals"]["end"] if end == -1], "the gang holds its GPUs"
    again = get(f"/v1/record?since={record['cursor']}")
    assert (again["complete"], again["cluster"], again["jobs"]["row"]) == (False, None, [])
    rows = {row["id"]: row for row in get("/v1/jobs")["jobs"]}
    assert (rows["default/train"]["phase"], rows["default/train"]["gpus"]) == ("running", 8)
    assert "quota" in rows["default/late"]["waits"] and rows["default/late"]["started"] == -1
    page = get("/v1/jobs?limit=1")
    assert [row["id"] for row in page["jobs"]] == ["default/late"] and page["next"] == 1
    assert [row["id"] for row in get("/v1/jobs?limit=1&before=1")["jobs"]] == ["default/train"]
    assert [row["id"] for row in get("/v1/jobs?state=waiting&queue=vision&user=default")["jobs"]] == ["default/late"]
    late, train = (quote(name, safe="") for name in ("default/late", "default/train"))
    why = get(f"/v1/jobs/{late}/why")
    assert why["phase"] == "waiting" and "quota" in why["sentence"] and why["answer"]["remedies"]
    split = why["waited_us"]
    assert 0 < split.pop("total") == sum(split.values()), "the wait by cause"
    place = get(f"/v1/jobs/{train}")["place"]
    assert sum(int(text.split()[0]) for text in place.values()) == 8
    assert "it came to queue vision" in [one["sentence"] for one in get(f"/v1/jobs/{train}/history")["entries"]]
    assert [row["job"] for row in get("/v1/eta")["jobs"]] == ["default/late"]
    assert {row["queue"]: row["used_gpus"] for row in get("/v1/queues")["queues"]} == {"vision": 8}
    assert get("/v1/top")["pools"][0]["allocated"] == 8 and get("/v1/health")["nodes"] == 2
    assert "kant logs --namespace default train" in get(f"/v1/jobs/{train}/log")
    assert get("/v1/whoami")["role"] == "viewer"
    assert ask(f"{url}/v1/jobs/none")[0] == 404 and ask(f"{url}/v1/jobs?limit=x")[0] == 400
    code, found = ask(f"{url}/v1/record", Host="evil.example")
    assert code == 403 and "port-forward" in found["error"]
    with urllib.request.urlopen(f"{url}/v1/events", timeout=20) as stream:
        assert stream.readline() == b": kant\n"


def browse(url: str) -> None:
    """In a real browser it has the cluster, a job with its reason, no order, and nothing to complain of."""
    with launched() as browser:
        page, complaints = browser.new_page(viewport={"width": 1360, "height": 860}), list[str]()
        page.set_default_timeout(20_000)
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(url)
        page.wait_for_selector("html[data-ready=true]")
        page.get_by_role("tab", name="Jobs").click()
        page.get_by_text("default/late").first.click()
        page.wait_for_selector("#why")
        assert "quota" in page.inner_text("#why")
        assert not page.get_by_role("button", name="Cancel").count()
        page.click("#back")
        page.get_by_text("default/train").first.click()
        page.wait_for_selector("#log")
        if (folder := os.environ.get("KANT_PICTURES")) is not None:
            page.screenshot(path=f"{folder}/kube-page.png")
        assert not complaints, complaints


def test_a_replica_that_does_not_lead_says_so() -> None:
    async def story() -> None:
        app = web.Application()
        app.add_routes(routes(Shown()))
        runner = web.AppRunner(app)
        await runner.setup()
        port = free_port()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        code, found = await asyncio.to_thread(ask, f"http://127.0.0.1:{port}/v1/record")
        assert code == 503 and found["error"].startswith("this replica: expected one that leads")
        await runner.cleanup()

    asyncio.run(story())


def test_a_page_needs_a_place() -> None:
    with pytest.raises(InputError, match="--page: expected --listen ADDRESS"):
        kube_app(["run", "--page"], exit_on_error=False, print_error=False, result_action="return_value")
