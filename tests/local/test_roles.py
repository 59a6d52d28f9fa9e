"""Who may do what: roles, tokens, the door of the API, and the audit log."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import secrets
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.cli.command import kant as verb
from tests.examples import examples
from tests.local.up import PROFILE, Up, asked, eventually
from tests.patience import PATIENCE_S

from kant.cli.page import tell
from kant.model.errors import InputError
from kant.model.tenant import Queue, QueueConfig
from kant.scheduler.profile import builtin_texts
from kant.service.callers import Keys, page_token
from kant.service.daemon import DaemonOptions, serve
from kant.service.roles import RANK, RIGHTS, Caller, Role, owns
from kant.service.routes import ROUTES
from kant.service.tokens import TOKENS, change_keys, digest, fresh_token, make_key, read_keys, show_keys
from kant.workload.cluster_file import read_cluster

SECRET = "s3cr3t-of-"
QUEUES = QueueConfig((Queue("red"), Queue("blue"), Queue("red-team", parent="red"), Queue("idle")))
ORDERS = ("submit", "cancel", "hold", "release", "stop")


def test_every_route_has_a_role_and_orders_are_not_for_viewers() -> None:
    assert [route.name for route in ROUTES if route.name not in RIGHTS] == []
    assert [name for name in (*ORDERS, "log", "audit") if RIGHTS[name].least is Role.VIEWER] == []


@given(st.sampled_from(list(Role)), st.sets(st.sampled_from("abc")), st.lists(st.sampled_from("abcd"), min_size=1))
def test_only_a_tenants_queues_and_those_below_are_its_own(role: Role, queues: set[str], lineage: list[str]) -> None:
    for user, is_unix in itertools.product(("ann", "ben"), (False, True)):
        own = owns(Caller("ann", role, tuple(queues), is_unix=is_unix), lineage, user)
        its = bool(queues & set(lineage)) or (is_unix and user == "ann")
        assert own == (role is Role.OPERATOR or (role is Role.TENANT and its))


# --- the door, from outside ------------------------------------------------------------------------------------------


class Door:
    """A Kant with jobs in three queues (one runs, one is over, each with a secret), and a token for each of many."""

    def __init__(self, kant: Up) -> None:
        self.kant = kant
        self.port = int(kant.client.get("/v1/whoami")["address"].rpartition(":")[2])
        self.tokens: dict[tuple[Role, tuple[str, ...]], str] = {}
        for role, queues in (
            (Role.VIEWER, ()), (Role.TENANT, ("red",)), (Role.TENANT, ("blue",)), (Role.TENANT, ("red", "blue")),
            (Role.TENANT, ("red-team",)), (Role.OPERATOR, ()),
        ):  # fmt: skip
            token = self.tokens[role, queues] = fresh_token()
            key = make_key(token, f"{role}-{'-'.join(queues)}", role, queues)
            change_keys(kant.home / TOKENS, lambda keys, key=key: (*keys, key))
        self.jobs = {}
        for queue, run in itertools.product(("red", "blue", "red-team"), ("true", "sleep 60")):
            word = SECRET + queue
            env = {"PATH": os.environ["PATH"], f"NAME_{word}": word}
            (kant.home / word).mkdir(exist_ok=True)
            job = kant.submit(f"echo {word}; {run}", queue=queue, env=env, workdir=str(kant.home / word))
            self.jobs[job] = queue
            assert eventually(lambda job=job: kant.log(job) != "")

    def ask(self, token: str, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        text = json.dumps(body) if body is not None else None
        connection.request(method, path, text, headers | ({"Content-Type": "application/json"} if text else {}))
        response = connection.getresponse()
        found = response.read1(1 << 20) if "event-stream" in str(response.headers) else response.read()
        connection.close()
        return response.status, found


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    home = tmp_path_factory.mktemp("roles") / "home"
    with Up(home, "2x8", queue_config=QUEUES, listen="127.0.0.1:0") as kant:
        made = Door(kant)
        yield made
        for job in made.jobs:
            kant.client.post(kant.client.job(job, "cancel"))
        kant.over(*made.jobs)


LINEAGE = {"red": ("red",), "blue": ("blue",), "red-team": ("red-team", "red")}
TABLE = {  # written down once more, by hand
    Role.VIEWER: {
        "jobs", "job", "why", "history", "queues", "eta", "top", "record", "events", "whatif", "profiles", "health",
        "whoami", "metrics", "schema", "waiting", "outcome", "usage", "status", "reservations",
    },
    Role.TENANT: {
        "submit", "workflow", "batch", "cancel", "hold", "release", "requeue", "update", "signal", "log", "attach",
        "shell", "trial",
    },
    Role.OPERATOR: {"audit", "operations", "stop", "reserve", "unreserve", "pause", "resume", "leave"},
}  # fmt: skip
PATHS = [(route.method, route.path, route.name) for route in ROUTES if route.name not in ("stop", "whatif", "leave")]


@settings(max_examples=examples(50), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_an_answer_is_given_exactly_if_the_table_says_so(door: Door, data: st.DataObject) -> None:
    (role, queues), token = data.draw(st.sampled_from(list(door.tokens.items())))
    method, path, name = data.draw(st.sampled_from(PATHS))
    job, queue = data.draw(st.sampled_from(list(door.jobs.items())))
    body = None
    if name in ("submit", "trial"):
        body = asked(door.kant.home, "true", queue=queue, hold=True)
    if name == "signal":
        body = {"signal": "USR1"}
    if name == "update":
        job, body = door.kant.submit("true", queue=queue, hold=True), {"priority": 1}
    if name in ("pause", "resume"):  # a queue that no job is in, which is paused when it is to be resumed
        path, body = f"/v1/queues/{name}", {"queues": ["idle"]}
        door.kant.client.post(f"/v1/queues/{'pause' if name == 'resume' else name}", body)
    if name in ("workflow", "batch"):
        one = {"job": asked(door.kant.home, "true", queue=queue, hold=True)}
        body = {"stages" if name == "workflow" else "lines": [one]}
    if name in ("reserve", "unreserve"):
        body = {"name": f"r{secrets.token_hex(4)}", "gpus": 1, "duration_s": 1, "start": time.time() + 10**6}
    if name == "unreserve" and role is Role.OPERATOR:
        made = json.loads(door.ask(token, "POST", "/v1/reservations", body)[1])["reservation"]["name"]
        path, body = path.replace("{reservation}", made), None
    if name in ("cancel", "hold", "release"):  # of a job that waits for ever
        job = door.kant.submit("true", queue=queue, hold=name != "hold", gpus=1)
    status, text = door.ask(token, method, path.replace("{job}", job).replace("{reservation}", "none"), body)
    least = next(least for least, names in TABLE.items() if name in names)
    fits = RANK[role] >= RANK[least]
    if least is Role.TENANT and role is Role.TENANT:
        fits = not set(LINEAGE[queue]).isdisjoint(queues) and name not in ("attach", "shell")  # for a job of its name
    assert (status == 403) == (not fits), (role, queues, name, queue, text)
    assert fits or set(json.loads(text)) == {"error"}
    if fits and name in ("hold", "requeue", "signal", "attach", "shell"):
        assert status in (200, 400)
    elif fits:
        assert status in (200, 201), text
    for other, above in LINEAGE.items():
        if role is Role.VIEWER or (role is Role.TENANT and set(above).isdisjoint(queues)):
            assert f'{SECRET}{other}"'.encode() not in text and f'NAME_{SECRET}{other}"'.encode() not in text
            assert f"echo {SECRET}{other};".encode() not in text and f"{SECRET}{other}\n".encode() not in text
    if fits and name == "job" and role is Role.OPERATOR:
        assert f"echo {SECRET}{queue};".encode() in text  # so the words above would be seen


def test_the_owner_lowers_the_limit_of_a_run_and_an_operator_raises_it_too(door: Door) -> None:
    tenant, operator = door.tokens[Role.TENANT, ("red",)], door.tokens[Role.OPERATOR, ()]
    job = next(job for job in door.jobs if door.jobs[job] == "red" and door.kant.phase(job) == "running")
    for token, limit, status in ((tenant, 900, 200), (tenant, 1000, 403), (operator, 1000, 200), (tenant, 800, 200)):
        before = door.kant.job(job)["time_s"]
        found, text = door.ask(token, "POST", f"/v1/jobs/{job}/update", {"time_s": limit})
        assert found == status, text
        assert door.kant.job(job)["time_s"] == (limit if status == 200 else before)
        assert status == 200 or b"at most 15m" in text


def test_without_a_token_nothing_is_told_and_a_revoked_one_is_worth_nothing(door: Door) -> None:
    for method, path, _ in [*PATHS, ("POST", "/v1/stop", "stop"), ("GET", "/v1/nothing", "")]:
        for token in ("", "kant_wrong", page_token(door.kant.home)[:-1]):
            status, text = door.ask(token, method, path.replace("{job}", "1"))
            assert status == 401 and set(json.loads(text)) == {"error"}
    assert door.ask("", "GET", "/")[0] == 404 or door.ask("", "GET", "/")[0] == 200  # the page itself is no secret
    home = ("--home", str(door.kant.home))
    token = verb("token", "new", "--user", "eve", "--role", "viewer", *home).out.strip().splitlines()[0]
    status, text = door.ask(token, "GET", "/v1/whoami")
    assert status == 200 and json.loads(text)["user"] == "eve" and json.loads(text)["role"] == "viewer"
    assert set(json.loads(text)["may"]) == TABLE[Role.VIEWER]
    rows = verb("token", "list", "--json", *home).json()["tokens"]
    mine = next(row for row in rows if row["user"] == "eve")
    assert token not in (door.kant.home / TOKENS).read_text() and mine["id"] == digest(token)[:8]
    stream = http.client.HTTPConnection("127.0.0.1", door.port, timeout=PATIENCE_S)
    stream.request("GET", "/v1/events", headers={"Authorization": f"Bearer {token}"})
    response = stream.getresponse()
    assert response.read1(100).startswith(b": kant")
    verb("token", "revoke", mine["id"], *home)
    assert door.ask(token, "GET", "/v1/whoami")[0] == 401
    door.kant.submit("true", queue="red")  # something to tell
    response.read()  # it ends
    assert "the id of a token (see `kant token list`), got" in verb("token", "revoke", mine["id"], *home).refusal()


def test_what_was_ordered_and_refused_is_kept_by_user_and_role(door: Door) -> None:
    kant, tenant = door.kant, door.tokens[Role.TENANT, ("blue",)]
    job = next(job for job, queue in door.jobs.items() if queue == "red")
    assert door.ask(tenant, "POST", f"/v1/jobs/{job}/cancel")[0] == 403
    status, text = door.ask(tenant, "POST", "/v1/jobs", asked(kant.home, "true", queue="blue"))
    mine = json.loads(text)["jobs"][0]
    assert status == 201 and kant.job(mine)["job"]["user"] == "tenant-blue"
    home = ("--home", str(kant.home))

    def deeds(*more: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = verb("audit", "--json", "--user", "tenant-blue", *more, *home).json()["deeds"]
        return found

    assert eventually(lambda: deeds("--refused")[0]["what"] == job)
    refused, done = deeds("--refused")[0], deeds()[0]
    assert (refused["verb"], refused["role"]) == ("cancel", "tenant")
    assert "expected a job in its queues (blue) for `cancel`, got 'red'" in refused["refused"]
    assert (done["verb"], done["what"], done["refused"]) == ("submit", mine, "")
    page = verb("audit", "--json", "--limit", "1", *home).json()
    after = verb("audit", "--json", "--limit", "1", "--before", str(page["next"]), *home).json()
    assert after["deeds"][0]["seq"] < page["deeds"][0]["seq"] == page["next"]
    assert "cancel" in verb("audit", "--refused", *home).out


def test_no_page_of_elsewhere_comes_in(door: Door) -> None:
    token = {"Authorization": f"Bearer {page_token(door.kant.home)}"}
    for more, status in (
        ({}, 200), ({"Host": "evil.example"}, 403), ({"Host": f"localhost:{door.port}"}, 200),
        ({"Origin": "http://evil.example"}, 403), ({"Origin": f"http://127.0.0.1:{door.port}"}, 200),
        ({"Origin": "null"}, 403), ({"Host": f"[::1]:{door.port}"}, 200),
    ):  # fmt: skip
        connection = http.client.HTTPConnection("127.0.0.1", door.port, timeout=PATIENCE_S)
        connection.request("GET", "/v1/whoami", headers=token | more)
        assert connection.getresponse().status == status, more


def test_the_verbs_go_to_an_address_with_a_token(door: Door, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KANT_HOME", str(tmp_path / "nowhere"))
    monkeypatch.setenv("KANT_URL", f"http://127.0.0.1:{door.port}")
    assert "KANT_TOKEN: expected a token for KANT_URL" in verb("jobs").refusal()
    file = tmp_path / "token"
    file.write_text(door.tokens[Role.TENANT, ("blue",)] + "\n")
    monkeypatch.setenv("KANT_TOKEN_FILE", str(file))
    job = verb("submit", "--queue", "blue", "--hold", "--", "true").out.strip()
    assert door.kant.job(job)["job"]["user"] == "tenant-blue"
    assert "a job in its queues (blue)" in verb("submit", "--queue", "red", "--", "true").refusal()
    assert verb("cancel", job, "--json").json()["jobs"] == [job]
    assert "start one with `kant up`" in verb("down").refusal()  # never that of another machine
    assert verb("jobs", "--home", str(door.kant.home), "--user", "nobody", "--json").json()["jobs"] == []
    monkeypatch.setenv("KANT_TOKEN", "wrong")
    assert "expected `Bearer TOKEN`" in verb("jobs").refusal()
    monkeypatch.setenv("KANT_URL", "127.0.0.1:5268")
    assert "KANT_URL: expected an address such as http://127.0.0.1:5268" in verb("jobs").refusal()
    monkeypatch.setenv("KANT_URL", "http://127.0.0.1:1")
    assert "KANT_URL: expected the address of a running Kant" in verb("jobs").refusal()


def test_mine_are_the_jobs_that_i_submitted_and_those_of_my_queues(door: Door) -> None:
    kept = [door.kant.submit("true", queue=queue, hold=True) for queue in LINEAGE]
    for (_, queues), token in door.tokens.items():

        def listed(path: str, token: str = token) -> list[tuple[str, str, str]]:
            found = json.loads(door.ask(token, "GET", path)[1])["jobs"]
            return [(row["id"], row["user"], row["queue"]) for row in found]

        if queues:
            assert (
                door.ask(token, "POST", "/v1/jobs", asked(door.kant.home, "true", queue=queues[0], hold=True))[0] == 201
            )
        user = json.loads(door.ask(token, "GET", "/v1/whoami")[1])["user"]
        for path in ("/v1/jobs?limit=1000", "/v1/jobs?limit=1000&state=held,running", "/v1/waiting?limit=100"):
            mine = [
                row for row in listed(path) if row[1] == user or not set(LINEAGE.get(row[2], ())).isdisjoint(queues)
            ]
            assert listed(f"{path}&mine=true") == mine, (path, user)
            assert mine or not queues, path
        assert listed("/v1/jobs?limit=2&mine=true") == listed("/v1/jobs?limit=1000&mine=true")[:2]
    for job in kept:
        door.kant.client.post(door.kant.client.job(job, "cancel"))


@pytest.mark.parametrize(
    ("who", "form"),
    [((Role.VIEWER, ()), ["--json"]), ((Role.TENANT, ("blue",)), []), ((Role.TENANT, ("red-team",)), ["--json"])],
)
def test_a_member_of_the_team_asks_what_if_and_has_the_page(
    who: tuple[Role, tuple[str, ...]], form: list[str], door: Door, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By a token. Nothing is told of others' jobs that the table of roles keeps from its holder."""
    kant, token = door.kant, door.tokens[who]
    full = kant.submit(f"echo {SECRET}red; sleep 60", queue="red", gpus=16, time_s=600, name="wide")
    assert eventually(lambda: kant.phase(full) == "running")
    late = kant.submit(f"echo {SECRET}red", queue="red", gpus=16, time_s=600, workdir=f"{kant.home}/{SECRET}red")
    assert eventually(lambda: kant.phase(late) == "waiting" and kant.job(late)["job"]["waits"] != "")
    monkeypatch.setenv("KANT_HOME", str(tmp_path / "nowhere"))
    monkeypatch.setenv("KANT_URL", f"http://127.0.0.1:{door.port}")
    monkeypatch.setenv("KANT_TOKEN", token)
    asked = ("whatif", "--submit", "gpus=16,time=1h,queue=red", "--nodes", "4")
    shown = verb(*asked, *form)
    assert shown.code == 0
    if form:
        found = shown.json()
        assert [row["job"] for row in found["helped"]] == [late] and found["submitted"][0]["start_us"] is not None
    else:
        assert "What if, at 20" in shown.out and "whatif-1" in shown.out
    hidden = [f"{SECRET}{other}" for other, above in LINEAGE.items() if set(above).isdisjoint(who[1])]
    assert hidden and not any(word in shown.out for word in hidden)
    assert "only the owner of Kant can read its journal" in verb(*asked, "--out", tmp_path / "out").refusal()
    profile = tmp_path / "mine.toml"
    profile.write_text(builtin_texts()["fifo"])
    assert "only the owner of Kant may name a file" in verb("whatif", "--profile", profile).refusal()
    assert verb("page").out.strip() == f"http://127.0.0.1:{door.port}/#token={token}"
    assert "kant token new" in verb("page", "--new").refusal()
    monkeypatch.setenv("KANT_TOKEN", "wrong")
    assert "expected `Bearer TOKEN`" in verb("page").refusal()
    assert "expected `Bearer TOKEN`" in verb(*asked).refusal()
    monkeypatch.delenv("KANT_URL")
    for job in (full, late):
        kant.client.post(kant.client.job(job, "cancel"))
    kant.over(full, late)


def test_a_page_is_made_for_users_of_the_machine_alone(door: Door) -> None:
    status, text = door.ask(door.tokens[Role.OPERATOR, ()], "GET", "/v1/whoami?page=same")
    assert status == 400 and b"a request over the socket of this machine" in text
    with pytest.raises(InputError, match="page: expected same or new, got 'other'"):
        door.kant.client.get("/v1/whoami", page="other")
    assert door.kant.client.get("/v1/whoami")["page"] == ""


# --- files of tokens -------------------------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(
            st.text("abcé.-_@+😀", min_size=1, max_size=20), st.sampled_from(list(Role)),
            st.lists(st.text("qü-/", min_size=1, max_size=9), min_size=1, max_size=3),
        ),
        max_size=5,
    )
)  # fmt: skip
def test_a_file_says_what_was_written(tmp_path_factory: pytest.TempPathFactory, given: list[Any]) -> None:
    keys = tuple(
        make_key(fresh_token(), user, role, tuple(queues) if role is Role.TENANT else ())
        for user, role, queues in given
    )
    path = tmp_path_factory.mktemp("keys") / "tokens.toml"
    path.touch(0o600)
    path.write_text(show_keys(keys), encoding="utf-8")
    assert read_keys(path) == keys


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("short", "one word of at least 16 characters"),
        ("a = [", "one word of at least 16 characters, or tables [[token]]"),
        (
            '[[token]]\nuser = "a"\nrole = "king"\nsha256 = "' + "0" * 64 + '"',
            "[[token]] 1, role: expected one of viewer, tenant, operator, got 'king'",
        ),
        ('[[token]]\nuser = "a"\nrole = "viewer"\nsha256 = "0"', "[[token]] 1, sha256: expected a SHA-256"),
        (
            '[[token]]\nuser = "a"\nrole = "viewer"\ntoken = "abcdefghijklmnopqrst"',
            "expected only the keys user, role, sha256",
        ),
        ('[[token]]\nuser = "a"\nrole = "tenant"\nsha256 = "' + "0" * 64 + '"', "queues for a tenant (--queue)"),
    ],
)
def test_a_file_that_is_wrong_is_refused_and_the_last_good_one_stays(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "tokens"
    path.touch(0o600)
    path.write_text("abcdefghijklmnopq\n")
    keys = Keys(path, "olga")
    (key,) = keys.now()
    assert (key.user, key.role, key.sha256) == ("olga", Role.OPERATOR, digest("abcdefghijklmnopq"))
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_keys(path)
    assert sentence in str(caught.value) and "\n" not in str(caught.value)
    assert keys.now() == (key,)
    path.unlink()
    assert keys.now() == ()


def test_token_files_are_for_their_owner_and_one_word_is_an_operator(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("abcdefghijklmnopq\n")
    with pytest.raises(InputError, match="only its owner can read"):
        serve(DaemonOptions(home=tmp_path / "home", profile=PROFILE, cluster=read_cluster("1x1"), token_file=token))
    token.chmod(0o600)
    assert (
        "[[token]] tables instead of a single token"
        in verb("token", "new", "--user", "a", "--role", "viewer", "--token-file", str(token)).refusal()
    )
    with Up(tmp_path / "home", listen="0.0.0.0:0", token_file=token) as kant:
        address = kant.client.get("/v1/whoami")["address"]
        connection = http.client.HTTPConnection("127.0.0.1", int(address.rpartition(":")[2]), timeout=PATIENCE_S)
        connection.request("GET", "/v1/whoami", headers={"Authorization": "Bearer abcdefghijklmnopq"})
        assert json.loads(connection.getresponse().read())["role"] == "operator"


# --- the page's address ----------------------------------------------------------------------------------------------


def test_the_page_has_a_token_that_stays_and_a_port_that_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = ("--home", str(tmp_path / "one"))
    with Up(tmp_path / "one", listen="127.0.0.1:0") as kant:
        address = kant.client.get("/v1/whoami")["address"]
        url = verb("page", *home).out.strip()
        assert url == f"http://{address}/#token={page_token(kant.home)}"
        assert stat.S_IMODE((kant.home / "page.token").stat().st_mode) == 0o600
        with Up(tmp_path / "two", listen=address, any_port=True) as other:
            assert other.client.get("/v1/whoami")["address"] not in ("", address)
        opened: list[str] = []
        monkeypatch.setattr("webbrowser.open", lambda where: opened.append(where) or True)
        verb("page", "--open", *home)
        way = Path(opened[0].removeprefix("file://"))
        assert stat.S_IMODE(way.stat().st_mode) == 0o600 and url in way.read_text()
    with Up(tmp_path / "one", listen="127.0.0.1:0"):
        assert verb("page", *home).out.strip().partition("#")[2] == url.partition("#")[2]
        assert verb("page", "--new", *home).out.strip().partition("#")[2] != url.partition("#")[2]
    with Up(tmp_path / "one"):
        assert "a Kant that listens on an address" in verb("page", *home).refusal()


def test_the_token_is_told_to_a_terminal_alone(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    tell("127.0.0.1:5268", "kant_abc")
    assert capsys.readouterr().out == ""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    tell("0.0.0.0:5268", "kant_abc")
    assert capsys.readouterr().out == "The page: http://127.0.0.1:5268/#token=kant_abc\n"
