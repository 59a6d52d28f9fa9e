"""Pods that ask for nothing but a device: the core packs them onto one node, whose devices it does not count."""

from __future__ import annotations

import re
from collections import Counter

from tests.kube import device_objects as d
from tests.kube.api import Api
from tests.kube.live import bound, until, where
from tests.kube.objects import make_pod
from tests.kube.running import Kant

NODES, EACH = 4, 12
CLASSES = ("card", "board", "adapter")
DRIVER = "cards.example.com"  # none of its devices is a GPU


async def cards(api: Api) -> None:
    classes = [d.device_class(name, f"device.driver == '{DRIVER}'") for name in CLASSES]
    await api.create_all([*(d.bare_node(f"n{at}") for at in range(NODES)), *classes])
    await api.create_all(
        [d.device_slice(f"n{at}", [d.device(f"card-{i}") for i in range(EACH)], driver=DRIVER) for at in range(NODES)]
    )


async def test_pods_with_a_claim_each_from_a_template_fill_all_nodes(api: Api, kant: Kant) -> None:
    await cards(api)
    for number, name in enumerate(CLASSES):  # by each of several names for the same devices
        pods = [make_pod(f"p{number}-{at}", 0) for at in range(NODES * EACH // len(CLASSES))]
        await d.create_claiming(api, pods, d.template(f"one-{name}", d.request(name, name)))
    async with kant() as driver:
        pods = await until(api, lambda pods: len(bound(pods)) == NODES * EACH)
        assert Counter(where(pods).values()) == {f"n{at}": EACH for at in range(NODES)}
        assert driver.counts.builds == 1  # nodes that are full are filters, and no reason for another state
    devices = [found for own in (await d.allocated(api)).values() for found in own]
    assert len(set(devices)) == NODES * EACH


async def test_pods_that_share_claims_fill_all_nodes(api: Api, kant: Kant) -> None:
    sharing = 3
    await cards(api)
    await api.create_all([d.claim(f"c{at}", d.request("card", "card")) for at in range(NODES * EACH)])
    await api.create_all([d.claiming_pod(f"p{at}-{i}", f"c{at}") for at in range(NODES * EACH) for i in range(sharing)])
    before = await api.requests()
    async with kant():
        pods = await until(api, lambda pods: len(bound(pods)) == NODES * EACH * sharing)
        assert Counter(where(pods).values()) == {f"n{at}": EACH * sharing for at in range(NODES)}
    spent = await api.requests() - before
    writes = {what: count for what, count in spent.items() if re.match(r"P\w+ resourceclaims", what)}
    assert writes.keys() == {"PATCH resourceclaims 200", "PATCH resourceclaims/status 200"}, "none in vain"
    assert writes["PATCH resourceclaims/status 200"] < 2 * NODES * EACH, "one is for all pods of a claim"
    assert len({found for own in (await d.allocated(api)).values() for found in own}) == NODES * EACH
