"""The page of a Kant on Kubernetes: its data are those of the state, and only the loopback of the pod gets them."""

from __future__ import annotations

import asyncio
import json
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from aiohttp import web
from tests.browser import launched
from tests.cli.command import kant as command
from tests.kube.api import Api
from tests.kube.control_plane import ControlPlane
from tests.kube.live import bound, install, queue, says
from tests.kube.objects import make_gang, make_node, make_pod
from tests.kube.processes import free_port
from tests.kube.running import KantProcess
from tests.patience import PATIENCE_S

from kant.cli.kube import kube_app
from kant.kube.connect.config import Config
from kant.kube.serve.led_run import LedRun
from kant.kube.serve.page import PageContent, routes
from kant.kube.serve.questions import LeaderQuestions
from kant.kube.serve.server import later
from kant.kube.user.page_orders import PageOrders
from kant.live.core import Core
from kant.live.start_forecasts import StartForecasts, no_forecaster
from kant.model.errors import InputError
from kant.model.node import ClusterSpec, Node
from kant.scheduler.profile import builtin_profile

WRONG: tuple[tuple[str, Any], ...] = (("none", None), ("queues", {}))


def ask(url: str, asked: Any = None, **headers: str) -> tuple[int, Any]:
    """The code and the body, decoded where it is JSON. `asked` is sent as JSON, or as it is where it is bytes."""
    data = asked if asked is None or isinstance(asked, bytes) else json.dumps(asked).encode()
    headers |= {} if asked is None or "Content-Type" in headers else {"Content-Type": "application/json"}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=PATIENCE_S) as reply:
            code, kind, body = reply.status, reply.headers["Content-Type"], reply.read()
    except urllib.error.HTTPError as error:
        code, kind, body = error.code, error.headers["Content-Type"], error.read()
    return code, json.loads(body) if kind.startswith("application/json") else body.decode()


def test_the_page_and_its_data(plane: ControlPlane, tmp_path: Path) -> None:
    port = free_port()

    async def story() -> None:
        async with Api(plane) as api:
            await install(api)
            await api.create_all([make_node("n0"), make_node("n1"), queue("vision", 8)])
            options = ("--no-leader-election", "--listen", f"127.0.0.1:{port}", "--journal", str(tmp_path))
            process = KantProcess(plane, *options, user="admin")
            try:
                await process.says("state built")
                labels = {"scheduling.kant.dev/queue": "vision"}
                await api.create_all(make_gang("train", 2, 4, labels=labels))
                await api.until(lambda pods: len(bound(pods)) == 2)
                await api.create(make_pod("late", 1, labels=labels))
                await api.until(lambda pods: says(pods, "late", "quota"))
                await asyncio.to_thread(look, f"http://127.0.0.1:{port}")
                await asyncio.to_thread(wonder, f"http://127.0.0.1:{port}")
                await asyncio.to_thread(browse, f"http://127.0.0.1:{port}")
            finally:
                process.stop()

    asyncio.run(story())
    there = command("whatif", "--kubeconfig", plane.kubeconfig("admin"), *CHANGES, "--json").json()
    (journal,) = tmp_path.glob("*.jsonl")
    ended = command("whatif", journal, *CHANGES, "--json").json()
    for found in (there, ended):  # nobody wrote how long the gang runs: that is assumed, and a quota is in its way
        assert found["run_times"] == {"assumed": 2} and found["waits"]["all"]["jobs"] == 1
        assert [row["job"].partition("~")[0] for row in found["helped"]] == ["default/late"]
        assert found["submitted"][0]["start_us"] is not None
        assert found["waits"]["all"]["after_s"]["mean"] < 600 < 2400 < found["waits"]["all"]["before_s"]["mean"]
    text = command("whatif", "--kubeconfig", plane.kubeconfig("admin"), "--nodes", "1", "--profile", "easy").out
    assert "1 more node" in text and "late" in text
    refused = command("whatif", "--kubeconfig", plane.kubeconfig("admin"), "--at", "1h", "--nodes", "1").refusal()
    assert "expected a journal; a running Kant" in refused
    no_forecaster = command("whatif", "--kubeconfig", plane.kubeconfig("nobody"), "--nodes", "1").refusal()
    assert "it needs the role kant-inspector" in no_forecaster


CHANGES = ("--quota", "vision:gpu=+8", "--submit", "gpus=4,time=1h,queue=vision", "--drain", "n0@+30m..+60m")
WORDS = {"quota": ["vision:gpu=+8"], "submit": ["gpus=4,time=1h,queue=vision"], "drain": ["n0@+30m..+60m"]}


def wonder(url: str) -> None:
    """What-ifs: of the journal of the leader, for callers of the same kind as all else here."""
    assert "whatif" in ask(f"{url}/v1/whoami")[1]["may"]
    code, found = ask(f"{url}/v1/whatif", WORDS)
    assert code == 200 and [row["job"] for row in found["helped"]] == ["default/late"], found
    assert len(found["curve"]["before_s"]) == 101 and found["change"][0].startswith("whatif-1 is submitted")
    assert ask(f"{url}/v1/profiles")[1]["profiles"][0]["about"]
    for asked, code, sentence in (
        ({}, 400, "whatif: expected at least one of --submit"),
        ({"drain": ["leaf-9"]}, 400, "--drain: expected a node, leaf"),
        ({"node": ["1"]}, 400, "the request: expected a valid body"),
        (b"{", 400, "the request: expected JSON"),
        ({"nodes": ["1" * (2 << 20)]}, 413, "POST /v1/whatif: expected a question of at most 1 MiB"),
    ):
        got, found = ask(f"{url}/v1/whatif", asked)
        assert (got, found["error"][: len(sentence)]) == (code, sentence)
    assert ask(f"{url}/v1/whatif", WORDS, **{"Content-Type": "text/plain"})[0] == 415
    assert ask(f"{url}/v1/whatif", WORDS, Host="evil.example")[0] == 403


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
    assert "it arrived in queue vision" in [one["sentence"] for one in get(f"/v1/jobs/{train}/history")["entries"]]
    assert [row["job"] for row in get("/v1/eta")["jobs"]] == ["default/late"]
    assert {row["queue"]: row["used_gpus"] for row in get("/v1/queues")["queues"]} == {"vision": 8}
    assert get("/v1/top")["pools"][0]["allocated"] == 8 and get("/v1/health")["nodes"] == 2
    assert "kant logs --namespace default train" in get(f"/v1/jobs/{train}/log")
    assert get("/v1/whoami")["role"] == "viewer"
    assert ask(f"{url}/v1/jobs/none")[0] == 404 and ask(f"{url}/v1/jobs?limit=x")[0] == 400
    code, found = ask(f"{url}/v1/record", Host="evil.example")
    assert code == 403 and "port-forward" in found["error"]
    with urllib.request.urlopen(f"{url}/v1/events", timeout=PATIENCE_S) as stream:
        assert stream.readline() == b": kant\n"


def browse(url: str) -> None:
    """In a real browser it has the cluster, a job with its reason, no order, and nothing to complain of."""
    with launched() as browser:
        page, complaints = browser.new_page(viewport={"width": 1360, "height": 860}), list[str]()
        page.set_default_timeout(1e3 * PATIENCE_S)
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
        page.get_by_role("tab", name="What if").click()
        page.get_by_label("GPUs more or less").fill("+8")
        page.locator("select[name=quotaOf]").select_option(index=1)
        page.get_by_role("button", name="Try it").click()
        page.wait_for_selector("#answer")
        assert "default/late" in page.inner_text("#answer")
        if (folder := os.environ.get("KANT_PICTURES")) is not None:
            page.screenshot(path=f"{folder}/kube-whatif.png", full_page=True)
        assert not complaints, complaints


async def test_a_replica_that_does_not_lead_or_keeps_no_journal_says_so() -> None:
    async def whatif(journal: str, now: int, asked: bytes, gone: Callable[[], bool]) -> tuple[int, bytes]:
        raise AssertionError("there is nothing to make futures of")

    def no_desk(config: Config) -> Any:
        raise AssertionError("nobody plans")

    led = LedRun(StartForecasts(no_forecaster))
    shown = LeaderQuestions(led)
    app = web.Application()
    content = PageContent(
        (), whatif, {}, partial(PageOrders, scheduler_name="kant", desk=no_desk), lambda questions: None, whatif
    )
    made = list[int]()

    def make() -> list[web.RouteDef]:
        made.append(1)
        return routes(shown, content, Config("http://none"))

    app.add_routes([later(make)])
    runner = web.AppRunner(app)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    code, found = await asyncio.to_thread(ask, f"http://127.0.0.1:{port}/v1/record")
    assert code == 503 and found["error"].startswith("this replica: expected the leader")
    code, found = await asyncio.to_thread(ask, f"http://127.0.0.1:{port}/v1/whatif", WORDS)
    assert code == 503 and found["error"].startswith("this replica: expected the leader")
    core = Core(ClusterSpec("c", (Node("n", 8),)), builtin_profile("kant"))
    led.follow(core)
    assert (await asyncio.to_thread(ask, f"http://127.0.0.1:{port}/v1/record"))[0] == 503, "it is being built"
    core.settled()
    code, found = await asyncio.to_thread(ask, f"http://127.0.0.1:{port}/v1/whatif", WORDS)
    assert code == 409 and found["error"].startswith(
        "the journal: expected one to start futures from (`kant kube run --journal"
    )
    assert "whatif" not in (await asyncio.to_thread(ask, f"http://127.0.0.1:{port}/v1/whoami"))[1]["may"]
    code, found = await asyncio.to_thread(ask, f"http://127.0.0.1:{port}/v1/jobs/ml%2Fnone/why")
    assert code == 404 and "'ml/none'" in found["error"]
    codes = [(await asyncio.to_thread(ask, f"http://127.0.0.1:{port}/v1/{path}", sent))[0] for path, sent in WRONG]
    assert codes == [404, 405] and made == [1]
    await runner.cleanup()


def test_a_page_needs_a_place() -> None:
    with pytest.raises(InputError, match="--page: expected --listen ADDRESS"):
        kube_app(["run", "--page"], exit_on_error=False, print_error=False, result_action="return_value")
