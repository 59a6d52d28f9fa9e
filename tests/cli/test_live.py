"""`kubectl kant`: what its verbs print of a cluster as it stands. How the state comes about is tested elsewhere."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from kant.cli.kubectl import kubectl_app
from kant.cli.live import LiveCluster
from kant.kube.user.rebuilt_state import RebuiltState
from kant.model.errors import InputError
from kant.model.units import HOUR, SECOND
from kant.testing import make_cluster, make_profile
from kant.testing.builders import make_job, make_queue
from kant.testing.harness import Harness


@pytest.fixture(scope="module")
def live() -> LiveCluster:
    """Team a holds 6 of 8 GPUs on one node, 2 of them borrowed; a job of team b waits for its quota."""
    harness = Harness(make_cluster(8), make_profile())
    harness.set_queues(make_queue("all"), make_queue("a", 4, parent="all"), make_queue("b", 4, parent="all"))
    harness.submit(make_job("ml/runs", gpus=3, pods=2, queue="a"), runtime=HOUR)
    harness.cycle()
    harness.submit(make_job("ml/waits", gpus=4, queue="b"))
    harness.cycle(60 * SECOND)
    jobs = {("ml", "runs-0"): "ml/runs", ("ml", "waits-0"): "ml/waits"}
    return LiveCluster(RebuiltState(harness.scheduler, 120 * SECOND, 0, jobs, {("ml", "odd"): "a CPU of 1x"}))


def ask(live: LiveCluster, *words: str) -> int:
    code = kubectl_app(lambda *_: live)(
        list(words), exit_on_error=False, print_error=False, result_action="return_value"
    )
    assert isinstance(code, int)
    return code


def told(live: LiveCluster, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert ask(live, *words, "--json") == 0
    answer: dict[str, object] = json.loads(capsys.readouterr().out)
    return answer


def test_why_names_the_reason_of_a_waiting_pod(live: LiveCluster, capsys: pytest.CaptureFixture[str]) -> None:
    answer = told(live, capsys, "why", "waits-0", "-n", "ml")
    assert (answer["status"], answer["reason"]["why"]) == ("pending", "over-quota")  # type: ignore[index]
    ask(live, "why", "waits-0", "-n", "ml")
    text = capsys.readouterr().out
    assert text.startswith("ml/waits: over quota: it asks for 4 GPUs") and "what would let it start" in text


def test_why_says_where_a_pod_runs(live: LiveCluster, capsys: pytest.CaptureFixture[str]) -> None:
    answer = told(live, capsys, "why", "runs-0", "-n", "ml")
    assert answer["status"] == "running" and list(answer["nodes"].values()) == [2]  # type: ignore[attr-defined]
    ask(live, "why", "ml/runs")
    assert "it does not wait, it has run for 2m" in capsys.readouterr().out


def test_eta_lists_what_waits(live: LiveCluster, capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = told(live, capsys, "eta")["jobs"]  # type: ignore[misc, attr-defined]
    assert row["job"] == "ml/waits" and row["why"] == "over-quota"
    ask(live, "eta", "waits-0", "-n", "ml")
    assert "ml/waits" in capsys.readouterr().out
    with pytest.raises(InputError, match="a pod that waits"):
        ask(live, "eta", "runs-0", "-n", "ml")


def test_queue_shows_quotas_and_loans(live: LiveCluster, capsys: pytest.CaptureFixture[str]) -> None:
    rows = {row["queue"]: row for row in told(live, capsys, "queue")["queues"]}  # type: ignore[attr-defined]
    assert (rows["a"]["nominal_gpus"], rows["a"]["used_gpus"], rows["a"]["borrowed_gpus"]) == (4, 6, 2)
    assert (rows["b"]["running"], rows["b"]["waiting"], rows["b"]["waiting_gpus"]) == (0, 1, 4)
    ask(live, "queue")
    assert "borrowed" in capsys.readouterr().out


def test_top_shows_pools_and_jobs(live: LiveCluster, capsys: pytest.CaptureFixture[str]) -> None:
    answer = told(live, capsys, "top")
    (pool,) = answer["pools"]  # type: ignore[misc]
    assert (pool["gpus"], pool["allocated"], pool["gar"], pool["gfr"]) == (8, 6, 0.75, 1)
    assert [job["job"] for job in answer["jobs"]] == ["ml/runs"]  # type: ignore[attr-defined]
    ask(live, "top")
    assert "75.0 %" in capsys.readouterr().out


def test_status_says_how_far_from_the_best_it_is(live: LiveCluster, capsys: pytest.CaptureFixture[str]) -> None:
    reply = live.status(True)
    assert reply.print(True) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["running"], found["waiting"], found["optimality"]["held_back"]) == (1, 1, 1), "its quota is used"
    assert found["optimality"]["stranded"][0]["jobs"] == [{"job": "ml/runs", "gpus": 2.0}]
    assert live.status(True).print(False) == 0
    assert "1 job may not start, whatever is free" in capsys.readouterr().out


def test_pods_that_nobody_knows_and_that_could_not_be_read(live: LiveCluster) -> None:
    with pytest.raises(InputError, match="a pod of namespace default with schedulerName kant"):
        ask(live, "why", "waits-0")
    with pytest.raises(InputError, match="a CPU of 1x"):
        ask(live, "eta", "odd", "-n", "ml")


def test_a_pod_that_is_no_job_yet_says_what_it_waits_for(live: LiveCluster, capsys: pytest.CaptureFixture[str]) -> None:
    ask(live, "why", "odd", "-n", "ml")
    assert capsys.readouterr().out == "ml/odd: it is not scheduled: a CPU of 1x\n"
    assert told(live, capsys, "why", "odd", "-n", "ml")["status"] == "untried"


def test_what_cannot_be_understood_is_said_by_top_alone(live: LiveCluster, capsys: pytest.CaptureFixture[str]) -> None:
    remarks, unread = ("node n0 has reached its limit of 4 pods",), ("node n7: no GPUs",)
    odd = replace(live, found=replace(live.found, remarks=remarks, unread=unread))
    ask(odd, "top")
    assert "not understood\n  node n7: no GPUs\n" in capsys.readouterr().out
    for words in (("why", "waits-0", "-n", "ml"), ("eta",), ("queue",)):
        ask(odd, *words)
        said = capsys.readouterr()
        assert "n7" not in said.out + said.err
