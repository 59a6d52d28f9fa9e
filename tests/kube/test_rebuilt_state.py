"""`kubectl kant` against a real API server: the leader answers, or the state is read once; and nothing is written."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import yaml
from tests.kube.api import Api
from tests.kube.control_plane import NAMESPACE, ControlPlane
from tests.kube.live import MANIFESTS, address_of_host, bound, install, queue, reachable, says
from tests.kube.objects import Object, make_gang, make_node, make_pod
from tests.kube.processes import free_port
from tests.kube.running import KantProcess
from tests.kube.scripted import Scripted, ok
from tests.kube.test_orders_live import granted
from tests.kube.test_own_pods_live import loaded
from tests.patience import PATIENCE_S

from kant.cli.app import run
from kant.cli.kubectl import cluster_answers, kubectl_app
from kant.cli.leader import _reckoned
from kant.cli.live import answer
from kant.insight.expected_start import StartForecast
from kant.insight.moment import Moment
from kant.kube.connect.config import Config
from kant.kube.connect.ticket import NOT_LEADING, NOT_YET, PATH, UNASKABLE, is_signed
from kant.kube.objects.names import PROFILE, TICKET, VERSION
from kant.kube.objects.views import Pod
from kant.kube.reconcile.workload import Workload
from kant.kube.serve.asked import NoForecastError, NotYetError, Question
from kant.kube.translate.annotations import RUNTIME
from kant.kube.translate.crds import API
from kant.kube.user.leader_answer import TRIES, answer_of_leader
from kant.kube.user.rebuilt_state import RebuiltState, _names
from kant.live.core import Core
from kant.live.start_forecasts import StartForecasts, no_forecaster
from kant.model.errors import InputError
from kant.model.event import JobSubmitted
from kant.model.job import Demand, Job, PodGroup
from kant.model.node import ClusterSpec, Node
from kant.scheduler.profile import builtin_profile

MOMENT = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ"
AS_NEW = "This is what a replica that starts now would answer."
SPAN = r"\d+(?:\.\d+)?(?:d|h|m|min|s)\b(?: \d+(?:h|m|min|s)\b)*"


def test_a_cluster_is_asked_why_a_pod_waits(plane: ControlPlane, capsys: pytest.CaptureFixture[str]) -> None:
    async def prepare() -> None:
        async with Api(plane) as api:
            await api.create_all([make_node("a"), make_node("b"), *make_gang("fits", 2), *make_gang("large", 80)])
            await api.bind("fits-0", "a")
            await api.bind("fits-1", "a")

    asyncio.run(prepare())
    config = str(plane.kubeconfig("admin"))

    def ask(*words: str) -> dict[str, object]:
        assert run([*words, "--kubeconfig", config, "--json"], kubectl_app(cluster_answers)) == 0
        answer: dict[str, object] = json.loads(capsys.readouterr().out)
        return answer

    assert ask("why", "fits-0")["status"] == "running"
    waits = ask("why", "large-7")
    assert (waits["status"], waits["reason"]["why"]) == ("pending", "never-fits")  # type: ignore[index]
    assert ask("top")["pools"] and [row["why"] for row in ask("eta")["jobs"]] == ["never-fits"]  # type: ignore[attr-defined]
    assert run(["why", "nobody", "--kubeconfig", config], kubectl_app(cluster_answers)) == 2
    assert "schedulerName kant" in capsys.readouterr().err


def test_the_leader_answers_as_one_would_reckon_alone(
    plane: ControlPlane, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    host, port = address_of_host(), free_port()
    if not host:
        pytest.skip("this machine has no address but the loopback, to which no API server passes requests on")
    config = {user: str(plane.kubeconfig(user)) for user in ("tenant", "deputy")}
    questions = (
        ("why", "late-0"), ("why", "runs"), ("why", "split-1"), ("eta",), ("eta", "late-1"), ("queue",), ("top",),
        ("why", "apart-1"), ("eta", "apart-0"),
    )  # fmt: skip
    alone = list[str]()

    def reckoned(*options: Any) -> Any:
        alone.append("once")
        return _reckoned(*options)

    monkeypatch.setattr("kant.cli.leader._reckoned", reckoned)

    def said(user: str, *words: str, code: int = 0) -> str:
        assert run([*words, "--kubeconfig", config[user]], kubectl_app(cluster_answers)) == code
        found = capsys.readouterr()
        return found.err if code else found.out

    def warned(user: str, *words: str) -> list[str]:
        assert run([*words, "--kubeconfig", config[user]], kubectl_app(cluster_answers)) == 0
        return capsys.readouterr().err.splitlines()

    async def story() -> None:
        async with Api(plane) as api:
            await install(api)
            await api.namespace(NAMESPACE)
            await api.apply(people())
            zone = {"example.com/rack": "one"}
            await api.create_all([make_node("n0", labels=zone), make_node("n1", labels=zone)])
            await api.create_all([queue("blue", 16), queue("default", 64)])
            await api.create(make_pod("runs", 6, annotations={RUNTIME: "2h"}))
            process = KantProcess(plane, "--listen", f"0.0.0.0:{port}", user="admin", lease_s=15.0)
            try:
                await process.says("state built")
                await api.until(lambda pods: bound(pods) == ["runs"])
                await api.create_all([*make_gang("late", 2, 8, annotations={RUNTIME: "1h"}), make_pod("next", 8)])
                await api.create_all(make_gang("split", 3)[1:])
                await api.until(lambda pods: says(pods, "late-0", "fit") and says(pods, "split-1", "2 of the 3"))
                await api.create_all(apart())
                await api.until(lambda pods: says(pods, "apart-0", "podAntiAffinity by example.com/rack"))
                await reachable(api, host, port)
                lease = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/kant"
                ticket = (await api.get(lease))["metadata"]["annotations"][TICKET]
                for at, words in enumerate(questions):
                    first = words[0] not in {verb for verb, *_ in questions[:at]}
                    for how in ((), ("--json",)) if first else ((),):
                        other = await asyncio.to_thread(said, "deputy", *words, *how)
                        assert alone.pop() and not alone, f"{words}: it is reckoned"
                        for _ in range(20):  # the leader's forecast may be some seconds old
                            led = await asyncio.to_thread(said, "tenant", *words, *how)
                            assert not alone, f"{words}: the leader answers"
                            differs = differing(*(json.loads(one) if how else one for one in (led, other)))
                            if not differs:
                                break
                            await asyncio.sleep(0.5)
                        assert not differs, words
                said_of_rules = await asyncio.to_thread(said, "tenant", "why", "apart-0")
                assert "podAntiAffinity by example.com/rack" in said_of_rules
                rows = json.loads(await asyncio.to_thread(said, "tenant", "eta", "--json"))["jobs"]
                assert [(row["job"], row["why"]) for row in rows] == [
                    ("default/late", "no-fit"),
                    ("default/apart", "no-fit"),
                ]
                rows = json.loads(await asyncio.to_thread(said, "tenant", "queue", "--json"))["queues"]
                assert [(row["waiting"], row["waiting_gpus"]) for row in rows if row["queue"] == "blue"] == [(1, 2.0)]
                await until_counted(api, "blue", 1)
                for words in (("why", "nobody"), ("eta", "runs")):
                    both_said = {await asyncio.to_thread(said, user, *words, code=2) for user in config}
                    assert len(both_said) == 1, "they refuse in the same words"
                alone.clear()
                _, heavy = await asyncio.to_thread(loaded, Path(config["tenant"]), ["numpy", "rich"], "why", "late-0")
                assert heavy == [], "whoever asks needs nothing of the core, and no tables"
                for path in ("/v1/asked/top", f"/v1/asked/top?proof={ticket}", "/v1/asked/top?json=&proof=0"):
                    assert await asyncio.to_thread(fetched, f"http://{host}:{port}{path}") == 401
                assert await asyncio.to_thread(fetched, f"http://{host}:{port}/v1/record") in (403, 404)
                with monkeypatch.context() as patched:
                    patched.setattr("kant.cli.leader.__version__", "0.0.1")
                    patched.setattr("kant.cli.leader.LeaderAnswers", None)  # words of another version are not asked for
                    assert "default" in await asyncio.to_thread(said, "tenant", "queue")
                alone.clear()
            finally:
                process.stop()
            assert "late: not enough free capacity" in await asyncio.to_thread(said, "tenant", "why", "late-0")
            assert alone, "nobody answers"
            lines = await asyncio.to_thread(warned, "tenant", "queue")
            assert lines == [f"kant: no leader: nobody holds the Lease {NAMESPACE}/kant. {AS_NEW}"]
            new = {VERSION: "9.9.9", PROFILE: 'name = "new"\n[unheard]\nx = 1\n'}
            late = {"holderIdentity": "late", "renewTime": "2026-01-01T00:00:00.000000Z"}
            await api.patch(lease, {"metadata": {"annotations": new}, "spec": late})
            refused = await asyncio.to_thread(said, "tenant", "top", code=2)
            assert "version 9.9.9; this is" in refused and "unheard: expected one of" in refused
            (line,) = await asyncio.to_thread(warned, "tenant", "top", "--profile", "kant")
            assert f"Lease {NAMESPACE}/kant was last renewed" in line
            (line,) = await asyncio.to_thread(warned, "tenant", "eta", "--system", "elsewhere", "--json")
            assert "no leader: there is no Lease elsewhere/kant." in line
            assert "See `kubectl kant --help`" in await asyncio.to_thread(said, "tenant", "wy", code=2)

    async def end() -> None:
        async with Api(plane) as api:
            for name in ("inspects", "looks"):
                await api.delete(f"/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/{name}")

    try:
        asyncio.run(story())
    finally:  # others are refused what these roles grant
        asyncio.run(end())


def test_a_pod_of_which_a_new_state_has_said_nothing_is_told_by_what_stands_on_it() -> None:
    said = {"conditions": [{"type": "PodScheduled", "status": "False", "message": "2 of the 3 pods exist"}]}
    given = [make_pod("old") | {"status": said}, make_pod("new"), make_pod("other", scheduler="default-scheduler")]
    pods = [msgspec.json.decode(json.dumps(pod), type=Pod) for pod in given]
    workloads = [Workload(pod.metadata.name, foreign=pod.metadata.name == "other") for pod in pods]
    members = SimpleNamespace(pods_of={pod.metadata.name: [pod.metadata.name] for pod in pods})
    driver: Any = SimpleNamespace(
        workloads=SimpleNamespace(members=members),
        mirror=SimpleNamespace(pods={pod.metadata.name: pod for pod in pods}),
    )
    jobs, complaints = _names(driver, workloads)
    told = {name: sentence for (_, name), sentence in complaints.items()}
    assert not jobs and told == {"old": "2 of the 3 pods exist", "new": "Kant has only just seen it: ask again"}


async def test_a_question_goes_on_until_it_meets_the_leader_and_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusal(code: int, reason: str) -> bytes:
        said = {"kind": "Status", "code": code, "reason": reason, "message": f"it is {reason}"}
        return ok(json.dumps(said).encode(), code)

    async def ask(*replies: bytes, word: str = "why") -> tuple[bytes | None, list[str]]:
        left = [*replies]

        async def reply(request: bytes, writer: asyncio.StreamWriter) -> None:
            writer.write(left.pop(0) if len(left) > 1 else left[0])

        async with Scripted(reply) as server:
            found = await answer_of_leader(Config(server.url), "kant-system", "secret", PATH + word, {"name": "a"})
        return found, [request.decode().split()[1] for request in server.seen]

    standby, soon, answer = refusal(503, NOT_LEADING), refusal(503, NOT_YET), ok(b"because")
    found, asked = await ask(standby, standby, soon, answer)
    assert found == b"because" and len(asked) == 4
    place, _, target = asked[0].partition("/proxy")
    assert place == "/api/v1/namespaces/kant-system/services/kant:http"
    assert is_signed("secret", target) and not is_signed("other", target) and "secret" not in target
    assert not is_signed("secret", target.replace("name=a", "name=b")) and not is_signed("secret", "/v1/asked/why")
    found, asked = await ask(standby)
    assert found is None and len(asked) == TRIES, "nobody leads"
    for code, reason in ((403, "Forbidden"), (404, "NotFound"), (503, "ServiceUnavailable"), (401, "Unauthorized")):
        found, asked = await ask(refusal(code, reason))
        assert found is None and len([path for path in asked if "/proxy" in path]) == 1, "it is reckoned alone"
    with pytest.raises(InputError, match=r"^it is Unaskable$"):
        await ask(standby, refusal(400, UNASKABLE))
    monkeypatch.setattr("kant.kube.user.leader_answer.SOON", 0.05)
    _, asked = await ask(soon, soon, answer)
    assert ["brief=" in path for path in asked] == [False, True, True], "it is said without a forecast"
    _, asked = await ask(soon, soon, answer, word="eta")
    assert not any("brief=" in path for path in asked), "a start cannot be said without one"


async def test_why_is_said_before_there_is_a_forecast_and_a_start_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    core = Core(ClusterSpec("c", (Node("n", 8),)), builtin_profile("kant"))
    core.happen(JobSubmitted(0, Job(id="default/a", groups=(PodGroup(1, Demand(9)),), submit=0)))
    core.settled()
    stands = RebuiltState(core.scheduler, core.now, core.zero, {("default", "a-0"): "default/a"}, {})
    monkeypatch.setattr("kant.cli.live.rebuilt_state", lambda driver, only: stands)
    monkeypatch.setattr("kant.cli.live.SOON", 0.01)
    driver: Any = SimpleNamespace(core=core)

    async def never(moment: Moment) -> StartForecast:
        await asyncio.sleep(3600)
        raise AssertionError

    forecasts = StartForecasts(never)
    why = Question("why", "default", "a-0", json=True, columns=0, colours=False)
    for question in (why, replace(why, word="eta"), replace(why, word="eta", brief=True)):
        with pytest.raises(NotYetError):
            await answer(driver, forecasts, question)
    said = json.loads(await answer(driver, forecasts, replace(why, brief=True)))
    assert (said["reason"]["why"], said["as_of_us"], said["expected_us"]["p50"]) == ("never-fits", -1, None)
    text = await answer(driver, forecasts, replace(why, brief=True, json=False, columns=80))
    assert b"its expected start is being computed: try again" in text
    with pytest.raises(NoForecastError):
        await answer(driver, StartForecasts(no_forecaster), why)


def apart() -> list[Object]:
    """A gang of two, for which the core knows a place, in two racks, of which there is one."""
    term = {"labelSelector": {"matchLabels": {"app": "g"}}, "topologyKey": "example.com/rack"}
    rule = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    return make_gang("apart", 2, labels={"app": "g", "scheduling.kant.dev/queue": "blue"}, affinity=rule)


async def until_counted(api: Api, name: str, waiting: int) -> None:
    """Until the status of a queue says that so many jobs wait."""
    async with asyncio.timeout(PATIENCE_S):
        while (await api.get(f"{API}/queues/{name}")).get("status", {}).get("waiting") != waiting:
            await asyncio.sleep(0.1)


def people() -> list[Object]:
    """An inspector by the shipped role; and one who may do the same, but not use the Service."""
    shipped = yaml.safe_load_all((MANIFESTS / "rbac.yaml").read_text())
    rules = next(one["rules"] for one in shipped if one["metadata"]["name"] == "kant-inspector")
    less = [rule for rule in rules if rule["resources"] != ["services/proxy"]]
    return [*granted("inspects", "tenant", rules), *granted("looks", "deputy", less)]


def fetched(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=10) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        return error.code


def timeless(text: str) -> str:
    """Without spans and moments, which are others a second later."""
    return re.sub(rf"{MOMENT}|{SPAN}|[ ━─]+", "", text)


def differing(one: Any, other: Any, at: str = "") -> list[str]:
    """Where two answers differ in anything but the moment at which they are given."""
    if isinstance(one, dict) and isinstance(other, dict):
        odd = sorted(one.keys() ^ other.keys())
        return [*odd, *(found for key in one.keys() & other.keys() for found in differing(one[key], other[key], key))]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [found for pair in zip(one, other, strict=True) for found in differing(*pair, at)]
    if isinstance(one, int) and isinstance(other, int) and (at.endswith("_us") or at in ("at", "total")):
        return []
    alike = timeless(one) == timeless(other) if isinstance(one, str) and isinstance(other, str) else one == other
    return [] if alike else [f"{at}: {one} and {other}"]
