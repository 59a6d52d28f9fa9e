"""The same commands on Kubernetes: what users do with jobs, by the verbs of `kant`, with no more rights than said."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.kube.api import Api
from tests.kube.control_plane import ControlPlane
from tests.kube.job_controller import JobController
from tests.kube.kubelet import FakeKubelet
from tests.kube.live import bound, install, says, until
from tests.kube.objects import Object, make_node, make_pod
from tests.kube.running import kant
from tests.kube.scripted import Scripted, ok
from tests.patience import PATIENCE_S

from kant.cli import app
from kant.insight.expected_start import StartForecast
from kant.insight.moment import Moment
from kant.kube.connect.client import ApiClient
from kant.kube.connect.config import Config
from kant.kube.objects.names import TEST_GATE, TEST_PODS
from kant.kube.translate.annotations import RESERVATION, SEGMENTS, TRAINING
from kant.kube.user.job_manifest import PodOptions, job_manifest
from kant.kube.user.job_objects import OF_JOB
from kant.kube.user.jobs import UserJobs
from kant.model.errors import InputError
from kant.model.submission import Submission
from kant.sim.forecast_starts import forecast_starts

DOCS = Path(__file__).parent.parent.parent / "docs" / "kubernetes.md"
TEAM = "team"


class Terminal:
    """`kant` at the terminal of somebody, while the test goes on."""

    def __init__(self, capsys: pytest.CaptureFixture[str], kubeconfig: Path) -> None:
        self.capsys = capsys
        self.there = ["--kubeconfig", str(kubeconfig), "--namespace", TEAM]

    async def kant(self, verb: str, *words: str, code: int = 0) -> str:
        """What it prints; on standard error where it refuses."""
        command, _, rest = " ".join(("", *words)).partition(" -- ")
        line = [verb, *command.split(), *self.there, *(["--", *rest.split()] if rest else [])]
        got = await asyncio.to_thread(app.run, line)
        out, err = self.capsys.readouterr()
        assert got == code, (line, out, err)
        return (err if code else out).strip()

    async def json(self, verb: str, *words: str) -> Any:
        return json.loads(await self.kant(verb, *words, "--json"))

    async def rows(self, *words: str) -> dict[str, dict[str, Any]]:
        return {row["id"]: row for row in (await self.json("jobs", "--all", *words))["jobs"]}

    async def until(self, holds: Callable[[dict[str, dict[str, Any]]], bool]) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not holds(found := await self.rows()):
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(found) from None
        return found


def role() -> list[Object]:
    """The role of a user as the docs have it."""
    blocks = re.findall(r"```yaml\n(.*?)```", DOCS.read_text(), re.DOTALL)
    (found,) = [block for block in blocks if "kant-user" in block]
    return list(yaml.safe_load_all(found))


async def forecast(moment: Moment) -> StartForecast:
    return forecast_starts(moment, moment.trial.id if moment.trial is not None else "")


def play(plane: ControlPlane, capsys: pytest.CaptureFixture[str], story: Any) -> None:
    async def run() -> None:
        async with Api(plane) as api:
            await install(api)
            await api.namespace(TEAM)
            await api.apply(role())
            await api.create_all([make_node(f"n{i}") for i in range(2)])
            terminal = Terminal(capsys, plane.kubeconfig("tenant"))
            async with FakeKubelet(api), JobController(api), kant(plane, forecaster=forecast):
                await story(api, terminal)

    asyncio.run(run())


async def end(api: Api, job: str, phase: str, code: int) -> None:
    for pod in await api.list("pods", TEAM, labelSelector=f"{OF_JOB}={job}"):
        state = {"name": "main", "image": "i", "imageID": "", "ready": False, "restartCount": 0}
        state["state"] = {"terminated": {"exitCode": code}}  # type: ignore[assignment]
        path = f"/api/v1/namespaces/{TEAM}/pods/{pod['metadata']['name']}/status"
        await api.patch(path, {"status": {"phase": phase, "containerStatuses": [state]}})


def test_a_gang_is_submitted_listed_held_released_and_cancelled(
    plane: ControlPlane, capsys: pytest.CaptureFixture[str]
) -> None:
    async def story(api: Api, user: Terminal) -> None:
        options = ("--image", "img", "--gpus", "8", "--cpus", "2", "--memory", "1GiB")
        train = await user.kant(
            "submit",
            *options,
            "--pods",
            "2",
            "--queue",
            "vision",
            "--time",
            "2h",
            "--env",
            "A=b",
            "--",
            "python",
            "t.py",
        )
        assert re.fullmatch("python-[a-z0-9]{5}", train)
        rows = await user.until(lambda rows: rows[train]["phase"] == "running" and rows[train]["started"] >= 0)
        row = rows[train]
        assert (row["name"], row["queue"], row["user"], row["gpus"], row["pods"]) == ("python", "vision", TEAM, 16, 2)
        assert row["ended"] == -1 and row["started"] >= row["submitted"] > 1e15
        pods = await api.list("pods", TEAM)
        assert all(pod["spec"]["activeDeadlineSeconds"] == 7200 for pod in pods)
        assert {pod["metadata"]["annotations"]["scheduling.kant.dev/expected-runtime"] for pod in pods} == {"7200s"}
        assert "job that waits, got 'running'" in await user.kant("hold", train, code=2)

        services = f"/api/v1/namespaces/{TEAM}/services"
        service = await api.get(f"{services}/{train}")
        job = await api.get(f"/apis/batch/v1/namespaces/{TEAM}/jobs/{train}")
        (owner,) = service["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["uid"]) == ("Job", train, job["metadata"]["uid"])
        assert (service["spec"]["clusterIP"], service["spec"]["publishNotReadyAddresses"]) == ("None", True)
        for name, value in service["spec"]["selector"].items():
            assert all(pod["metadata"]["labels"][name] == value for pod in pods)
        assert {pod["spec"]["subdomain"] for pod in pods} == {train}
        env = {one["name"]: one for one in pods[0]["spec"]["containers"][0]["env"]}
        assert env["MASTER_ADDR"]["value"] == f"{train}-0.{train}" and env["A"]["value"] == "b"

        late = await user.kant("submit", *options, "--hold", "--name", "Late_One!", "--", "sleep", "1")
        assert late.startswith("late-one-")
        assert (await user.rows())[late]["phase"] == "held"
        assert "it is held" in await user.kant("why", late)
        await user.kant("release", late)
        rows = await user.until(lambda rows: "fit now" in rows[late]["waits"])
        times = [row["submitted"] for row in rows.values()]
        assert rows[late]["phase"] == "waiting" and times == sorted(times, reverse=True), "the latest first"
        text = await user.kant("jobs")
        assert re.search(rf"{late} +late-one +default +{TEAM} +waiting +8 +\d", text) and "fit now" in text
        assert late not in await user.kant("jobs", "--queue", "vision")
        await user.kant("hold", late)
        await user.until(lambda rows: rows[late]["phase"] == "held")
        await until(api, lambda pods: len(pods) == 2)
        assert "a held job, got 'running'" in await user.kant("release", train, code=2)
        await user.kant("release", late)

        assert await user.json("cancel", train) == {"jobs": [train]}
        rows = await user.until(lambda rows: train not in rows and rows[late]["phase"] == "running")
        assert train not in [one["metadata"]["name"] for one in await api.list("services", TEAM)], (
            "it went with its job"
        )
        await end(api, late, "Succeeded", 0)
        rows = await user.until(lambda rows: rows[late]["phase"] == "finished")
        assert (rows[late]["code"], rows[late]["ended"] > 0) == (0, True)
        assert await user.kant("cancel", late) == "all of them have ended"
        assert await user.kant("jobs") == "no jobs wait or run (kant jobs --all lists ended jobs too)"

    play(plane, capsys, story)


def test_an_array_starts_one_by_one_and_a_failure_says_its_code(
    plane: ControlPlane, capsys: pytest.CaptureFixture[str]
) -> None:
    async def story(api: Api, user: Terminal) -> None:
        many = await user.kant("submit", "--image", "img", "--gpus", "8", "--array", "0-2", "--", "true")
        rows = await user.until(lambda rows: rows[many]["phase"] == "running")
        pods = await until(api, lambda pods: sum(bool(pod["spec"].get("nodeName")) for pod in pods) == 2)
        assert len(pods) == 3 and rows[many]["gpus"] == 24
        made = await api.get(f"/apis/batch/v1/namespaces/{TEAM}/jobs/{many}")
        assert made["spec"]["backoffLimitPerIndex"] == 0
        await user.kant("cancel", many)
        bad = await user.kant("submit", "--image", "img", "--", "false")
        await user.until(lambda rows: rows[bad]["phase"] == "running" and many not in rows)
        await end(api, bad, "Failed", 3)
        rows = await user.until(lambda rows: rows[bad]["phase"] == "failed")
        assert (rows[bad]["code"], rows[bad]["failures"]) == (3, 1) and rows[bad]["reason"] and rows[bad]["ended"] > 0

    play(plane, capsys, story)


def test_questions_are_those_of_kubectl_kant_and_take_the_name_of_a_job(
    plane: ControlPlane, capsys: pytest.CaptureFixture[str]
) -> None:
    async def story(api: Api, user: Terminal) -> None:
        segments = "--segments", "node=1"
        big = await user.kant("submit", "--image", "img", "--pods", "3", "--gpus", "8", *segments, "--", "big")
        one = await user.kant("submit", "--image", "img", "--array", "0-2", "--gpus", "8", "--", "one")
        await user.until(lambda rows: "fit now" in rows[big]["waits"] or "empty cluster" in rows[big]["waits"])
        await user.until(lambda rows: rows[one]["phase"] == "running")
        assert "need the role kant-inspector" in await user.kant("queue")
        user.there[1] = str(plane.kubeconfig("admin"))
        assert (await user.json("why", big))["job"] == f"{TEAM}/{big}"
        assert (await user.kant("why", big)).startswith(f"{TEAM}/{big}: ")
        assert (await user.json("why", one))["status"] == "pending", "of several pods one that waits"
        assert big in await user.kant("eta", big)
        (pool,) = (await user.json("top"))["pools"]
        assert (pool["gpus"], pool["allocated"]) == (16, 16)
        assert [row["queue"] for row in (await user.json("queue"))["queues"]] == ["default"]
        await api.create(make_pod("alone", 8, namespace=TEAM))
        assert "alone" in await user.kant("why", "alone")
        assert "with schedulerName kant, got 'nobody'" in await user.kant("why", "nobody", code=2)

    play(plane, capsys, story)


def test_what_a_user_must_mend_is_one_sentence(
    plane: ControlPlane, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(api: Api, user: Terminal) -> None:
        assert "a job of namespace team with schedulerName kant, got 'none'" in await user.kant(
            "cancel", "none", code=2
        )
        sentence = await user.kant("submit", "--image", "i", "--priority-class", "no", "--hold", "--", "x")
        assert sentence.startswith("x-")  # the server asks about the class when pods are made
        rights = role()
        rights[0]["rules"] = [rule for rule in rights[0]["rules"] if rule["resources"] != ["services"]]
        await api.apply(rights)
        before = await user.rows()
        sentence = await user.kant("submit", "--image", "i", "--pods", "2", "--", "x", code=2)
        assert sentence.endswith("got no permission to create services in namespace team (403)")
        assert await user.rows() == before, "nothing of it is left"
        user.there[1] = str(plane.kubeconfig("nobody"))
        sentence = await user.kant("jobs", code=2)
        assert sentence == (
            "kant: Kubernetes: expected an account with the role kant-user (docs/kubernetes.md, section The same "
            "commands), got no permission to list jobs in namespace team (403)"
        )

    play(plane, capsys, story)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--after 3", "--after: expected none on Kubernetes"),
        ("--priority 3", "--priority: expected --priority-class NAME on Kubernetes"),
        ("--warn 5s", "--warn: expected none on Kubernetes"),
        ("--array 1-3", "--array: expected indices from 0 on without a gap"),
    ],
)
def test_what_has_no_meaning_there_is_refused(words: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["submit", "--kube", "--image", "i", *words.split(), "--", "x"]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"image": ""}, "--image: expected the container image"),
        ({"command": ()}, "COMMAND: expected a program"),
        ({"gpus": 0.5}, "--gpus: expected a whole number of GPUs up to 1024"),
        ({"pods": 0}, "--pods: expected a whole number from 1"),
        ({"array": (0, 1), "pods": 2}, "--array: expected no --pods with it"),
        ({"queue": "a b"}, "--queue: expected a name of letters"),
        ({"workdir": "here"}, "--workdir: expected a folder of the image"),
    ],
)
def test_a_wish_that_cannot_be_is_refused(fields: dict[str, Any], sentence: str) -> None:
    given: dict[str, Any] = {"command": ("x",), "image": "i"} | fields
    with pytest.raises(InputError, match=re.escape(sentence)):
        job_manifest(*asked(**given), "default")


def asked(**fields: Any) -> tuple[Submission, PodOptions]:
    """A job, and what only Kubernetes asks of it."""
    given = {"command": ("x",), "workdir": "", "image": "i"} | fields
    pods = {name: given.pop(name) for name in PodOptions.__slots__ if name in given}
    return Submission(**given), PodOptions(**pods)


def told(**fields: Any) -> dict[str, str]:
    """The environment of the pods: a value, or the label that has it."""
    made = job_manifest(*asked(**fields), TEAM)
    env = made["spec"]["template"]["spec"]["containers"][0]["env"]
    assert len({one["name"] for one in env}) == len(env)
    return {one["name"]: one.get("value") or one["valueFrom"]["fieldRef"]["fieldPath"] for one in env}


def test_a_gang_is_told_where_its_first_pod_is_and_a_process_its_rank_where_that_is_true() -> None:
    index = "metadata.labels['batch.kubernetes.io/job-completion-index']"
    alone = told(pods=3, gpus=1)
    first = alone["MASTER_ADDR"]
    assert re.fullmatch(r"(x-[a-z0-9]{5})-0\.\1", first)
    assert (alone["NNODES"], alone["MASTER_PORT"], alone["NODE_RANK"]) == ("3", "29500", index)
    assert (alone["WORLD_SIZE"], alone["RANK"]) == ("3", index) and "PET_NPROC_PER_NODE" not in alone
    many = told(pods=2, gpus=8, env={"MASTER_PORT": "1", "NODE_RANK": "7"})
    assert "RANK" not in many and "WORLD_SIZE" not in many
    assert (many["PET_NPROC_PER_NODE"], many["MASTER_PORT"], many["NODE_RANK"]) == ("8", "1", "7")
    assert (many["PET_NNODES"], many["PET_NODE_RANK"], many["PET_MASTER_ADDR"]) == ("2", index, many["MASTER_ADDR"])
    assert not {"MASTER_ADDR", "NODE_RANK", "RANK"} & {*told(gpus=8), *told(array=(0, 1, 2))}


def test_a_gang_says_that_it_is_one() -> None:
    def notes(**fields: Any) -> Object:
        made = job_manifest(*asked(**fields), TEAM)
        return dict(made["spec"]["template"]["metadata"]["annotations"])

    least = "scheduling.kant.dev/min-available"
    assert (notes(pods=3)[least], notes(array=(0, 1, 2))[least]) == ("3", "1") and least not in notes()


def test_a_gang_that_cannot_be_taken_back_is_named_and_has_not_started() -> None:
    made: list[Object] = []

    async def answer(request: bytes, writer: asyncio.StreamWriter) -> None:
        if request.startswith(b"POST") and b"/jobs " in request:
            made.append(json.loads(request.partition(b"\r\n\r\n")[2]))
            name = made[0]["metadata"]["name"]
            writer.write(ok(json.dumps({"metadata": {"name": name, "uid": "u"}}).encode()))
        else:
            body = b'{"kind":"Status","reason":"Oops","message":"etcd is full"}'
            writer.write(b"HTTP/1.1 500 X\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

    async def main() -> str:
        async with Scripted(answer) as server, ApiClient(Config(server.url)) as client:
            with pytest.raises(InputError) as raised:
                await UserJobs(client, TEAM).submit(*asked(pods=2))
            return str(raised.value)

    sentence = asyncio.run(main())
    assert made[0]["spec"]["suspend"] is True
    assert "etcd is full" in sentence and sentence.endswith(f"kant cancel {made[0]['metadata']['name']}")


# --- output: a server without kubelets has none, so these are played --------------------------------------------------


class Cluster:
    """A Job, its pods and what they have written. `logs` has an answer for each time that somebody reads."""

    def __init__(self, *logs: tuple[bytes, str]) -> None:
        self.logs = list(logs)
        self.phase = "Running"
        self.ended = False
        self.names = ["j-0-old", "j-0-new", "j-1-a"]

    async def answer(self, request: bytes, writer: asyncio.StreamWriter) -> None:
        path = request.split(b" ")[1].decode()
        if "/log" in path:
            text, then = self.logs.pop(0)
            writer.write(b"HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n" % (len(text), text))
            self.ended = then == "over"
            if then == "again":
                self.names = ["j-0-third", "j-1-a"]
            writer.write(b"0\r\n\r\n") if then != "lost" else writer.close()
        elif "/pods" in path:
            pods = [self._pod(name, when) for when, name in enumerate(self.names)]
            writer.write(ok(json.dumps({"items": pods}).encode()))
        else:
            ends = [{"type": "Complete", "status": "True"}] if self.ended else []
            template = {"spec": {"schedulerName": "kant"}}
            job = {
                "metadata": {"name": "j", "uid": "u"},
                "spec": {"template": template},
                "status": {"conditions": ends},
            }
            writer.write(ok(json.dumps(job).encode()))

    def _pod(self, name: str, when: int) -> Object:
        index = name.split("-")[1]
        meta = {"name": name, "uid": name, "creationTimestamp": f"2026-01-01T00:00:0{when}Z"}
        meta |= {"annotations": {"batch.kubernetes.io/job-completion-index": index}, "ownerReferences": [{"uid": "u"}]}  # type: ignore[dict-item]
        return {"metadata": meta, "spec": {"nodeName": "n"}, "status": {"phase": self.phase}}


def read(cluster: Cluster, name: str, *, follow: bool = False) -> tuple[bytes, list[str]]:
    """What is printed, and the requests for output."""

    async def main() -> tuple[bytes, list[str]]:
        async with Scripted(cluster.answer) as server, ApiClient(Config(server.url)) as client:
            text = b"".join([part async for part in UserJobs(client, TEAM).logs(name, follow=follow)])
            return text, [path for each in server.seen if "/log" in (path := each.split(b" ")[1].decode())]

    return asyncio.run(main())


def test_the_output_is_that_of_the_last_run_of_one_pod() -> None:
    text, asked = read(Cluster((b"hello\n", "")), "j")
    assert (text, asked) == (b"hello\n", [f"/api/v1/namespaces/{TEAM}/pods/j-0-new/log?container=main"])
    text, asked = read(Cluster((b"other\n", "")), "j_1")
    assert text == b"other\n" and "/pods/j-1-a/log" in asked[0]
    with pytest.raises(InputError, match="NAME_3 for its pod"):
        read(Cluster(), "j_x")


def test_who_has_not_started_says_so() -> None:
    cluster = Cluster()
    cluster.phase = "Pending"
    with pytest.raises(InputError, match="job j: expected one that has started, got 'running'"):
        read(cluster, "j")


def test_output_is_followed_over_a_lost_connection_and_another_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kant.kube.user.jobs.LOOK", 0.01)
    cluster = Cluster((b"one ", "lost"), (b"one two ", "again"), (b"anew", "over"))
    text, asked = read(cluster, "j", follow=True)
    assert text == b"one two anew"
    assert [path.split("/")[6] for path in asked] == ["j-0-new", "j-0-new", "j-0-third"]
    assert all("follow=true" in path for path in asked)


def test_its_reservation_its_segments_and_what_it_trains_are_annotations_that_kant_reads() -> None:
    made = job_manifest(
        *asked(reservation="course", training="mixtral-8x7b tensor=8", segments="spine=4 leaf=2", pods=8), TEAM
    )
    notes = made["spec"]["template"]["metadata"]["annotations"]
    assert (notes[RESERVATION], notes[TRAINING]) == ("course", "mixtral-8x7b tensor=8")
    assert notes[SEGMENTS] == "spine=4 leaf=2"
    plain = job_manifest(*asked(), TEAM)["spec"]["template"]["metadata"]["annotations"]
    assert not {RESERVATION, SEGMENTS, TRAINING} & plain.keys()


def test_a_tenant_asks_when_a_job_would_start_and_nothing_is_left_of_the_question(
    plane: ControlPlane, capsys: pytest.CaptureFixture[str]
) -> None:
    async def story(api: Api, user: Terminal) -> None:
        options = ("--image", "img", "--gpus", "8")
        held = await user.kant("submit", *options, "--pods", "2", "--time", "2h", "--", "python", "t.py")
        await user.until(lambda rows: rows[held]["phase"] == "running")
        text = await user.kant("submit", *options, "--test-only", "--time", "1h", "--", "python", "mine.py")
        assert re.match(r"P50 (\S+), P90 \S+; 1 job ends, expected at .*; number 1 of 1 waiting jobs; ", text)
        assert held not in text and 1 < hours_until(text) < 2, "any share of its limit is as likely"
        assert not await user.kant("submit", *options, "--test-only", "--pods", "3", "--", "true", code=1), (
            "it is an answer"
        )
        refused = await user.kant("submit", *options, "--test-only", "--array", "0-3", "--", "true", code=2)
        assert refused == "kant: --array: expected a single job with --test-only, got 4"
        assert list(await user.rows()) == [held], "the questions are deleted"

        gate = [{"name": TEST_GATE}]
        wrong = make_pod("wrong", 1, annotations={TEST_PODS: "many"}, schedulingGates=gate)
        await api.create_all([wrong, make_pod("asks", 1, annotations={TEST_PODS: "16"}, schedulingGates=gate)])
        pods = await until(api, lambda pods: says(pods, "wrong", "a number of pods") and says(pods, "asks", "P50 2"))
        assert len(bound(pods)) == 2, "what only asks is bound nowhere"

    play(plane, capsys, story)


def hours_until(sentence: str) -> float:
    """From now until the first time in a sentence."""
    found = datetime.fromisoformat(re.findall(r"\d{4}-\S+Z", sentence)[0])
    return (found - datetime.now(UTC)).total_seconds() / 3600
