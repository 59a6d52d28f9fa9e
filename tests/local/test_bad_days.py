"""Bad input and bad days: one clear sentence each, nothing lost, and Kant goes on."""

from __future__ import annotations

import http.client
import json
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.command import kant as verb
from tests.local.joined import free_port
from tests.local.up import PROFILE, Up, asked, eventually
from tests.openapi import schema
from tests.patience import PATIENCE_S

from kant.local.processes import marked
from kant.local.record import JobPhase, JobRecord
from kant.model.errors import InputError
from kant.model.submission import Submission
from kant.service import store as store_module
from kant.service.callers import page_token
from kant.service.client import ServiceClient
from kant.service.daemon import DaemonOptions, serve
from kant.service.guard import address
from kant.service.store import JobStore, StoreFullError
from kant.workload.cluster_file import read_cluster

BURST = int(os.environ.get("KANT_BURST", "200"))


def refusal(home: Path, **options: Any) -> str:
    """What `kant up` says in place of starting. Afterwards kernels of this thread are compiled as before."""
    inside = []

    @contextmanager
    def watched() -> Iterator[None]:
        inside.append(True)
        try:
            yield
        finally:
            inside.pop()

    with patch("kant.service.daemon.as_written", watched), pytest.raises(InputError) as caught:
        serve(DaemonOptions(home=home, profile=PROFILE, cluster=read_cluster("1x1"), **options))
    assert not inside
    return str(caught.value)


def test_a_home_has_one_kant_and_only_its_owner_comes_in(tmp_path: Path) -> None:
    with Up(tmp_path / "home") as kant:
        assert f"expected a home that no other Kant uses (process {kant.pid} does)" in refusal(kant.home)
        assert stat.S_IMODE((kant.home / "kant.sock").stat().st_mode) == 0o600
        assert stat.S_IMODE((kant.home / "kant.db").stat().st_mode) == 0o600
    assert not (kant.home / "kant.sock").exists()


@pytest.mark.parametrize(
    "content", [b"no database at all, but longer than a header" * 100, b"SQLite format 3\0" + b"\xff" * 5000]
)
def test_a_store_that_is_broken_is_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "kant.db").write_bytes(content)
    assert "expected an intact store" in refusal(home)
    assert (home / "kant.db").read_bytes() == content


def test_a_store_of_somebody_else_of_the_future_or_gone_is_refused(tmp_path: Path) -> None:
    import sqlite3

    home = tmp_path / "home"
    home.mkdir()
    other = sqlite3.connect(home / "kant.db")
    other.execute("CREATE TABLE things (a)")
    other.close()
    assert "this is another database" in refusal(home)
    (home / "kant.db").unlink()
    store = JobStore(home / "kant.db")
    store._db.execute("PRAGMA user_version = 99")
    store.close()
    assert f"a store of version {store_module.migrations()[-1][0]} or older; use the newer Kant that" in refusal(home)
    (home / "kant.db").unlink()
    (home / "runs" / "1").mkdir(parents=True)
    assert "the store of the jobs in runs/ beside it" in refusal(home)


def test_the_store_does_not_lose_what_a_migration_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = JobStore(tmp_path / "kant.db")
    first.keep("key", b"value")
    first.close()
    known = store_module.migrations()
    after = known[-1][0] + 1
    later = [*known, (after, "ALTER TABLE audit ADD COLUMN more TEXT")]
    monkeypatch.setattr(store_module, "migrations", lambda: later)
    for _ in range(2):
        second = JobStore(tmp_path / "kant.db")
        assert second.kept("key") == b"value" and second._pragma("user_version") == after
        second.close()


@pytest.mark.parametrize(
    ("listen", "sentence"),
    [
        ("0.0.0.0:80", "a loopback address such as 127.0.0.1:8080, or tokens"),
        ("[::]:80", "a loopback address"),
        ("localhost:80", "an IP address with a port"),
        ("127.0.0.1:70000", "an IP address with a port"),
    ],
)
def test_addresses_beyond_this_machine_need_a_token(listen: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        address(listen, shared=False)
    assert address("0.0.0.0:80", shared=True) == ("0.0.0.0", 80)


def ask(port: int, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, Any]:
    """Status and answer over loopback."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
    response = connection.getresponse()
    return response.status, json.loads(response.read())


def test_requests_that_are_wrong_get_one_sentence_each(tmp_path: Path) -> None:
    port = free_port()
    with Up(tmp_path / "home", listen=f"127.0.0.1:{port}") as kant:
        said = refusal(tmp_path / "other", listen=f"127.0.0.1:{port}")
        assert said == f"--listen: expected an address that is free (Address already in use), got '127.0.0.1:{port}'"
        good = json.dumps(asked(kant.home, "true")).encode()
        own = {"Authorization": f"Bearer {page_token(kant.home)}"}
        plain = {"Content_Type": "application/json"} | own
        for status, path, body, headers in (
            (400, "/v1/jobs", b"{", plain),
            (400, "/v1/jobs", b"\xff", plain),
            (400, "/v1/jobs", b"[]", plain),
            (400, "/v1/jobs", good.replace(b'"workdir"', b'"wrkdir"'), plain),
            (400, "/v1/jobs", good[:-1] + b', "gpus": 1.5}', plain),
            (400, "/v1/jobs", good[:-1] + b', "gpus": -1}', plain),
            (400, "/v1/jobs", good[:-1] + b', "env": {"A=B": ""}}', plain),
            (400, "/v1/jobs", good[:-1] + b', "array": [1, 1]}', plain),
            (404, "/v1/jobs", good[:-1] + b', "after": ["77"]}', plain),
            (415, "/v1/jobs", good, own | {"Content_Type": "text/plain"}),
            (403, "/v1/jobs", good, plain | {"Origin": "http://evil.example"}),
            (403, "/v1/jobs", good, plain | {"Host": "evil.example"}),
            (404, "/v1/jobs/77/cancel", None, own),
            (404, "/v1/nothing", None, own),
            (405, "/v1/health", None, own),
            (401, "/v1/nothing", None, {}),
            (401, "/v1/jobs", good, {"Content_Type": "application/json"}),
        ):
            found, answer = ask(port, "POST", path, body, **headers)
            assert found == status and answer.keys() == {"error"}, (path, body, found, answer)
            assert "expected" in answer["error"] and "\n" not in answer["error"], answer
        for path in ("/v1/jobs?limit=0", "/v1/jobs?state=sad", "/v1/jobs?before=x", "/v1/jobs/1/log?offset=1e3"):
            assert ask(port, "GET", path, **own)[0] in (400, 404)
        assert kant.client.get("/v1/jobs")["jobs"] == []
        assert ask(port, "POST", "/v1/jobs", good, **plain)[0] == 201


def test_a_full_disk_takes_nothing_new_and_lets_run_what_runs(tmp_path: Path) -> None:
    full = tmp_path / "full"

    def prepare() -> None:
        write = JobStore.write

        def writing(self: JobStore, records: Any) -> None:
            if full.exists():
                raise StoreFullError("database or disk is full")
            write(self, records)

        JobStore.write = writing  # type: ignore[method-assign]

    with Up(tmp_path / "home", prepare=prepare) as kant:
        job = kant.submit("while [ ! -e go ]; do sleep 0.05; done; exit 4")
        assert eventually(lambda: kant.phase(job) == "running")
        full.touch()
        for _ in range(2):
            with pytest.raises(InputError, match=r"the store: expected a disk that can be written \(database or disk"):
                kant.submit("true")
        assert eventually(lambda: "full" in kant.client.get("/v1/health")["trouble"])
        assert "no new job is accepted: database or disk is full" in verb("top", "--home", kant.home).out
        (kant.home / "go").touch()
        assert eventually(lambda: marked(f"KANT_RUN={kant.home}/runs/{job}/1") == [])
        full.unlink()
        assert kant.over(job) == ["failed"]
        assert kant.job(job)["job"]["code"] == 4
        assert eventually(lambda: not kant.client.get("/v1/health")["trouble"])
        later = kant.submit("true")
        assert kant.over(later) == ["finished"]
        assert len(kant.client.get("/v1/jobs")["jobs"]) == 2


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB of its own."""
    home = tmp_path / "home"
    home.mkdir()
    try:
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(home)], capture_output=True)
    except OSError:
        pytest.skip("this machine has no mount")
    if done.returncode != 0:
        pytest.skip("only root may mount file systems")
    try:
        yield home
    finally:
        subprocess.run(["umount", "--lazy", str(home)], check=True)


def test_on_a_disk_that_is_really_full_nothing_is_lost(small_disk: Path) -> None:
    def fill() -> None:
        with suppress(OSError), (small_disk / "filler").open("ab", buffering=0) as out:
            while True:
                out.write(bytes(4096))

    with Up(small_disk, "2x4") as kant:
        runs = kant.submit("for i in 1 2 3 4 5 6 7 8; do echo line $i; sleep 0.2; done; exit 4", gpus=1)
        held = kant.submit("echo done", hold=True)
        assert eventually(lambda: kant.log(runs) != "")
        fill()
        refused = 0
        for _ in range(2000):  # the log of the store has some room of its own
            try:
                kant.submit("true", env={"PATH": "/bin", "ROOM": "x" * 5000}, hold=True)
            except InputError as error:
                assert "the store: expected a disk that can be written" in str(error), error
                refused += 1
                if refused == 3:
                    break
            fill()
        assert refused == 3 and "full" in kant.client.get("/v1/health")["trouble"]
        taken = len(kant.client.get("/v1/jobs", limit=1000)["jobs"])
        assert eventually(lambda: marked(f"KANT_RUN={kant.home}/runs/{runs}/1") == [])  # it came to its end
        (small_disk / "filler").unlink()
        assert kant.over(runs) == ["failed"] and kant.job(runs)["job"]["code"] == 4  # and its end was kept
        assert kant.log(runs).startswith("line 1\n")
        assert eventually(lambda: not kant.client.get("/v1/health")["trouble"])
        kant.client.post(kant.client.job(held, "release"))
        assert kant.over(held) == ["finished"] and kant.log(held) == "done\n"
        fill()
        kant.kill()
    up = [sys.executable, "-m", "kant", "up", "--home", str(small_disk), "--cluster", "2x4", "--listen", "none"]
    said = subprocess.run(up, capture_output=True, text=True).stderr
    assert said.startswith("kant: the store: expected a disk that can be written (") and said.count("\n") == 1
    (small_disk / "filler").unlink()
    with Up(small_disk, "2x4") as kant:
        assert len(kant.client.get("/v1/jobs", limit=1000)["jobs"]) == taken
        assert kant.phase(runs) == "failed"


def test_a_job_that_fills_the_disk_can_be_cancelled_and_all_answers_agree(small_disk: Path) -> None:
    with Up(small_disk, "2x4") as kant:
        filling = kant.submit("while :; do cat /dev/zero >> filler 2>/dev/null; sleep 0.05; done", grace_s=0.1)

        def refused() -> bool:
            try:
                kant.submit("true", env={"PATH": "/bin", "ROOM": "x" * 5000}, hold=True)
            except InputError:
                return bool(kant.client.get("/v1/health")["trouble"])
            return False

        assert eventually(refused)
        assert kant.client.post(kant.client.job(filling, "cancel"))["jobs"] == [filling]
        assert eventually(lambda: marked(f"KANT_RUN={kant.home}/runs/{filling}/1") == [])

        def agree() -> bool:
            listed = kant.client.get("/v1/jobs", limit=1000)["jobs"]
            phases = {row["phase"] for row in listed if row["id"] == filling}
            why = kant.client.get(kant.client.job(filling, "why"))["phase"]
            return phases == {why} == {"cancelled"} and kant.client.get("/v1/health")["running"] == 0

        assert eventually(agree)
        assert filling not in {row["id"] for row in kant.client.get("/v1/jobs", state="running", limit=1000)["jobs"]}
        (small_disk / "filler").unlink()
        assert eventually(lambda: not kant.client.get("/v1/health")["trouble"])
        assert kant.phase(filling) == "cancelled"


@given(st.data())
def test_a_damaged_page_of_the_store_is_one_sentence_and_nothing_is_overwritten(data: st.DataObject) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "kant.db"
        store = JobStore(path)
        submissions = [Submission(command=("echo", "x" * 50 * i), workdir="/") for i in range(40)]
        store.write(
            [
                JobRecord(
                    i,
                    str(i),
                    submission,
                    store_module.digest_of(msgspec.json.encode(submission)),
                    "ann",
                    i,
                    JobPhase.HELD,
                )
                for i, submission in enumerate(submissions, start=1)
            ]
        )
        store.close()
        whole, size = path.read_bytes(), 4096
        assert len(whole) > 5 * size
        page = data.draw(st.integers(1, len(whole) // size - 1))
        junk = data.draw(st.sampled_from((b"\xa5", b"\0", b"\xff")))
        damaged = whole[: page * size] + junk * size + whole[(page + 1) * size :]
        path.write_bytes(damaged)
        try:
            store = JobStore(path)
            assert [record.submission for record in store.live()] == submissions, "what is read is what was written"
            store.close()
        except InputError as error:
            assert "an intact store" in str(error) and "recovers its jobs" in str(error)
            assert "\n" not in str(error) and path.read_bytes() == damaged


def test_a_burst_of_submissions_is_taken_whole(tmp_path: Path) -> None:
    with Up(tmp_path / "home") as kant:
        blocker = kant.submit("sleep 30", gpus=8)
        array = kant.submit("true", gpus=1, array=list(range(2_000)))
        taken: list[str] = []

        def many() -> None:
            for _ in range(BURST // 8):
                taken.append(kant.submit("true", hold=True))

        threads = [threading.Thread(target=many) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(taken)) == BURST
        assert kant.client.get("/v1/health")["jobs"] == 2_001 + BURST
        kant.kill()
    with Up(tmp_path / "home") as kant:
        assert kant.client.get("/v1/health")["jobs"] == 2_001 + BURST
        assert kant.phase(blocker) == "running"
        gone = kant.client.post(kant.client.job(array.partition("_")[0], "cancel"))["jobs"]
        assert len(gone) == 2_000
        kant.client.post(kant.client.job(blocker, "cancel"))
        kant.over(blocker)


def test_another_cluster_waits_for_who_runs(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with Up(home) as kant:
        job = kant.submit("sleep 60", gpus=8)
        assert eventually(lambda: kant.phase(job) == "running")
    assert f"--cluster: expected the same nodes and GPUs as before while job {job} runs" in refusal(home)
    with Up(home) as kant:
        kant.client.post(kant.client.job(job, "cancel"))
        assert kant.over(job) == ["cancelled"]
    with Up(home, "1x1") as kant:
        assert kant.phase(job) == "cancelled"


def test_the_schema_that_is_checked_in_is_that_of_the_code() -> None:
    kept = (Path(store_module.__file__).parent / "openapi.json").read_text()
    assert json.loads(kept) == json.loads(json.dumps(schema())), "write src/kant/service/openapi.json anew (docs/up.md)"


def test_verbs_without_a_kant_say_how_to_start_one(tmp_path: Path) -> None:
    home = tmp_path / "nowhere"
    for arguments in (
        ("jobs",), ("logs", "1"), ("cancel", "1"), ("queue",), ("top",), ("why", "1"), ("eta",), ("down",),
        ("submit", "--", "true"),
    ):  # fmt: skip
        at = arguments.index("--") if "--" in arguments else len(arguments)
        said = verb(*arguments[:at], "--home", home, *arguments[at:]).refusal()
        assert "expected the home of a running Kant (start one with `kant up`)" in said, said
    for arguments, part in (
        (("submit", "--gpus", "1"), "COMMAND: expected a program"),
        (("submit", "--array", "9-1", "--", "true"), "--array: expected indices"),
        (("submit", "--env", "A", "--", "true"), "--env: expected NAME=VALUE"),
        (("submit", "--memory", "lots", "--", "true"), "--memory: expected a size"),
        (("submit", "--time", "soon", "--", "true"), "--time: expected a duration"),
        (("up", "--log-size", "0MiB"), "--log-size: expected a size"),
        (("up", "--listen", "0.0.0.0:1", "--home", str(home), "--cluster", "1x1"), "--listen: expected a loopback"),
        (("why", "1", "--at", "2h"), "--at: expected a journal; a running Kant"),
    ):
        assert part in verb(*arguments).refusal()


def test_the_verbs_say_what_the_service_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Up(tmp_path / "home") as kant:
        monkeypatch.setenv("KANT_HOME", str(kant.home))
        job = verb(
            "submit", "--gpus", "2", "--time", "1m", "--name", "hello", "--", "sh", "-c", "echo hi; pwd"
        ).out.strip()
        assert kant.over(job) == ["finished"]
        assert kant.log(job) == f"hi\n{tmp_path}\n"
        listed = verb("jobs", "--all", "--json").json()
        assert [row["id"] for row in listed["jobs"]] == [job] and listed["next"] is None
        assert "hello" in verb("jobs", "--all").out and "no jobs wait or run" in verb("jobs").out
        array = verb("submit", "--array", "1-3", "--hold", "--", "true").out.strip()
        assert verb("release", array, "--json").json()["jobs"] == [f"{array}_{index}" for index in (1, 2, 3)]
        assert kant.over(*(f"{array}_{index}" for index in (1, 2, 3))) == ["finished"] * 3
        assert verb("why", job).out.startswith(f"{job}: it is finished")
        assert "expected the id of a job, got '99'" in verb("why", "99").refusal()
        assert verb("top", "--json").json()["nodes"][0]["gpus"] == 4
        assert verb("queue", "--json").json()["queues"] == []
        assert verb("eta", "--json").json()["jobs"] == []
        assert ServiceClient(kant.home).get("/v1/openapi.json")["openapi"] == "3.1.0"
        assert os.environ["KANT_HOME"] == str(kant.home)
