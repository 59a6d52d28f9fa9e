"""What people read while their pods wait, on a real API server: what is missing is named."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from tests.kube.api import Api
from tests.kube.control_plane import ControlPlane
from tests.kube.live import bound, of_queue, profile, queue, says, until
from tests.kube.objects import make_gang, make_node, make_pod
from tests.kube.running import Kant
from tests.kube.storage_objects import uses

from kant.cli.app import run
from kant.cli.kubectl import cluster_answers, kubectl_app
from kant.kube.notify import reasons

NOBODY = "kant: no leader: there is no Lease kant-system/kant. This is what a replica that starts now would answer.\n"
RECLAIM = "[preemption]\npriority = false\nreclaim = 'nominal'\nmin_run_s = 0\n"


async def answer(plane: ControlPlane, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[dict[str, object], str]:
    """What `kubectl kant` says as JSON, and what on standard error."""
    config = str(plane.kubeconfig("admin"))
    assert await asyncio.to_thread(run, [*words, "--kubeconfig", config, "--json"], kubectl_app(cluster_answers)) == 0
    said = capsys.readouterr()
    return json.loads(said.out), said.err


async def test_a_node_with_all_the_pods_that_it_may_have_is_named(
    api: Api, kant: Kant, plane: ControlPlane, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "node n0 has reached its limit of 2 pods"
    shut = "node n1 accepts no new pods (cordoned, not ready or malformed)"
    await api.create_all([make_node("n0", pods=2), make_node("n1", unschedulable=True)])
    odd = make_node("odd")
    odd["status"]["capacity"]["amd.com/gpu"] = "2"
    await api.create(odd)
    async with kant():
        await api.create_all([make_pod(f"p{number}", 1) for number in range(2)])
        await until(api, lambda pods: len(bound(pods)) == 2)
        await api.create_all([make_pod("late", 1), make_pod("lost", 1, **uses("data"))])
        await until(
            api, lambda pods: says(pods, "late", f"{words}; {shut}") and says(pods, "lost", "claim data does not exist")
        )
    why, said = await answer(plane, capsys, "why", "late")
    assert why["remarks"] == [words, shut] and said == NOBODY
    why, said = await answer(plane, capsys, "why", "lost")
    assert (why["status"], why["sentence"], said) == ("untried", "its claim data does not exist", NOBODY)
    gang = make_gang("part", 2)[0]
    gang["metadata"]["ownerReferences"] = [
        {"apiVersion": "batch/v1", "kind": "Job", "name": "owner", "uid": "1", "controller": True}
    ]
    await api.create(gang)
    for name in ("part-0", "owner", "part"):
        why, said = await answer(plane, capsys, "why", name)
        assert (why["status"], why["sentence"]) == ("untried", "1 of the 2 pods of its gang exist")
    top, said = await answer(plane, capsys, "top")
    assert "node odd: " in str(top["unread"]) and "GPUs of one kind" in str(top["unread"]) and said == NOBODY


async def test_a_reclaim_that_waits_for_min_run_says_so(
    api: Api,
    kant: Kant,
    plane: ControlPlane,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reasons, "AFRESH", 0.2)
    await api.create(make_node("n0"))
    await api.create_all([queue("all"), queue("ours", 8, parent="all")])
    await api.create(queue("theirs", 0, parent="all", minRun="2h"))
    ruled = profile(RECLAIM)
    async with kant(profile=ruled):
        yes = {"scheduling.kant.dev/preemptible": "true"}
        await api.create(make_pod("low", 8, labels=of_queue("theirs"), annotations=yes))
        await until(api, lambda pods: bound(pods) == ["low"])
        await api.create(make_pod("high", 8, labels=of_queue("ours")))
        await until(api, lambda pods: says(pods, "high", "it runs for 2h before that (min_run)"))
    text = tmp_path / "profile.toml"
    text.write_text(ruled.text)
    why, _ = await answer(plane, capsys, "why", "high", "--profile", str(text))
    facts = [fact["fact"] for fact in why["facts"]]  # type: ignore[attr-defined]
    (protected,) = [fact for fact in facts if fact["about"] == "protected"]
    assert protected["min_run"] == 7_200_000_000 and protected["queue"] == "theirs"
    assert why["expected_us"]["p50"] == protected["at"]  # type: ignore[index]
