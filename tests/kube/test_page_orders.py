"""Orders from the page of a Kant on Kubernetes: each by the token of who gives it, and in a real browser."""

from __future__ import annotations

import asyncio
import os

from playwright.sync_api import Page, expect
from tests.browser import launched, opened
from tests.kube.api import Api
from tests.kube.control_plane import ControlPlane
from tests.kube.live import bound, deputy_of_kant, install, of_queue, queue, says, until
from tests.kube.objects import make_gang, make_node, make_pod
from tests.kube.processes import free_port
from tests.kube.running import KantProcess
from tests.kube.test_kube_page import ask
from tests.kube.test_orders_live import OTHER, TEAM, operator, policy, tenant

from kant.kube.translate.crds import API


async def test_people_give_orders_on_the_page_by_their_own_rights(plane: ControlPlane) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    async with Api(plane) as api:
        await install(api)
        for space in (TEAM, OTHER):
            await api.namespace(space)
        await policy(api, [*tenant(), *operator()])
        await deputy_of_kant(api)
        await api.create_all([make_node("n0"), make_node("n1"), queue("vision", 64)])
        options = ("--no-leader-election", "--listen", f"127.0.0.1:{port}")
        process = KantProcess(plane, *options, user="deputy")
        try:
            await process.says("state built")
            marks = of_queue("vision")
            await api.create_all([make_pod(f"full-{i}", 8, labels=marks) for i in range(2)])
            await until(api, lambda pods: len(bound(pods)) == 2)
            await api.create_all(make_gang("train", 2, 4, namespace=TEAM, labels=marks))
            await api.create(make_pod("theirs", 4, namespace=OTHER, labels=marks))
            await until(api, lambda pods: says(pods, "train-1", "capacity") and says(pods, "theirs", "capacity"))
            await asyncio.to_thread(refuse, url, plane)
            await asyncio.to_thread(browse, url, plane.token("tenant"), plane.token("operator"))
            assert (await api.get(f"{API}/queues/vision"))["spec"]["state"] == "hold"
            (drain,) = await api.list(f"{API}/reservations")
            assert drain["spec"]["nodeSelector"] == {"kubernetes.io/hostname": "n1"}
        finally:
            process.stop()


def refuse(url: str, plane: ControlPlane) -> None:
    """Nobody orders without a token, and nobody what the API server does not let them."""
    theirs = f"{url}/v1/jobs/{OTHER}%2Ftheirs"
    mine = {"Authorization": f"Bearer {plane.token('tenant')}"}
    assert ask(f"{url}/v1/whoami")[1]["user"] == ""
    said = ask(f"{url}/v1/whoami", **mine)[1]
    assert said["user"] == "tenant" and {"hold", "release", "update"} <= set(said["may"])
    assert not {"order_queue", "order_node"} & set(said["may"])
    boss = ask(f"{url}/v1/whoami", Authorization=f"Bearer {plane.token('operator')}")[1]
    assert {"order_queue", "order_node"} <= set(boss["may"])
    for path, asked, headers, code, sentence in (
        (f"{theirs}/hold", {}, {}, 401, "expected your own bearer token"),
        (f"{theirs}/hold", {}, {"Authorization": "Bearer a b"}, 401, "expected your own bearer token"),
        (f"{theirs}/hold", {}, {"Authorization": "Bearer nobodys"}, 401, "does not accept the credentials"),
        (f"{theirs}/hold", {}, mine, 403, "you have no permission to list pods in namespace blue"),
        (f"{url}/v1/queues/vision/hold", {}, mine, 403, "you have no permission to get queues"),
        (f"{url}/v1/nodes/n0/drain", {}, mine, 403, "you have no permission to get nodes"),
        (f"{url}/v1/jobs/{TEAM}%2Ftrain/update", {"priority": 9}, mine, 403, "above that of the pod's PriorityClass"),
        (f"{url}/v1/jobs/{TEAM}%2Ftrain/update", {"priority": "9"}, mine, 400, "expected a priority"),
        (f"{url}/v1/jobs/{TEAM}%2Fnone/hold", {}, mine, 400, "expected a job or a pod of namespace red"),
        (f"{theirs}/hold", {}, mine | {"Host": "evil.example"}, 403, "expected a caller in the leader's pod"),
    ):
        got, found = ask(path, asked, **headers)
        assert (got, sentence in found["error"]) == (code, True), (path, got, found)
    assert ask(f"{url}/v1/whoami", Authorization="Bearer nobodys")[0] == 401


def browse(url: str, tenant: str, operator: str) -> None:
    with launched() as browser, opened(browser, url, width=1360) as page:
        to_job(page, f"{TEAM}/train")
        assert page.locator("#order-hold").count() == 0, "who has not signed in only looks"
        sign_in(page, tenant)
        expect(page.locator("#sign")).to_contain_text("tenant · Sign out")
        to_job(page, f"{TEAM}/train")
        page.locator("#order-hold").click()
        page.get_by_role("button", name="Yes, hold").click()
        expect(page.locator(".jobhead .phase")).to_contain_text("held")
        expect(page.locator("#why")).to_have_text("it is held until a user releases it")
        picture(page, "kube-held")
        page.locator("#order-release").click()
        expect(page.locator(".jobhead .phase")).to_contain_text("waiting")
        page.locator("#rank input").fill("-3")
        page.locator("#rank button").click()
        expect(page.locator(".facts").first).to_contain_text("-3")
        to_tab(page, "Queues")
        assert page.locator("#order-queue, #order-node").count() == 0, "a tenant orders nothing of the cluster"
        page.locator("#sign").click()
        page.wait_for_selector("html[data-ready]")
        sign_in(page, operator)
        expect(page.locator("#sign")).to_contain_text("operator · Sign out")
        to_tab(page, "Queues")
        page.locator("#order-queue button", has_text="Hold").click()
        expect(page.locator("#order-queue .hint")).to_have_text("Queue vision starts nothing.")
        page.locator("#order-node select").select_option("n1")
        page.locator("#order-node button", has_text="Drain").click()
        expect(page.locator("#order-node .hint")).to_have_text("Node n1 is being freed.")
        picture(page, "kube-orders")


def to_tab(page: Page, name: str) -> None:
    page.get_by_role("tab", name=name).click()


def to_job(page: Page, job: str) -> None:
    to_tab(page, "Jobs")
    if page.locator("#back").count():
        page.locator("#back").click()
    page.get_by_role("link", name=job).first.click()
    page.wait_for_selector("#job-title")


def sign_in(page: Page, token: str) -> None:
    page.locator("#sign").click()
    page.locator(".token input").fill(token)
    page.get_by_role("button", name="Sign in", exact=True).last.click()
    page.wait_for_selector("html[data-ready]")


def picture(page: Page, name: str) -> None:
    if (folder := os.environ.get("KANT_PICTURES")) is not None:
        page.screenshot(path=f"{folder}/{name}.png")
