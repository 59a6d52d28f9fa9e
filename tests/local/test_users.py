"""Teams on one machine: jobs run as who submitted them, with that user's groups and limits; and HTTPS."""

from __future__ import annotations

import dataclasses
import grp
import http.client
import json
import os
import pwd
import re
import resource
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.cli.command import kant as verb
from tests.local.up import PROFILE, Up, asked, eventually
from tests.patience import PATIENCE_S

from kant.cli.machine_place import MachinePlace
from kant.cli.page import url_of
from kant.cli.place import LIVE, Filter
from kant.local import accounts
from kant.local.accounts import Account, limited
from kant.model.errors import InputError
from kant.model.tenant import Queue, QueueConfig
from kant.service.callers import page_token
from kant.service.client import ServiceClient
from kant.service.daemon import DaemonOptions, serve
from kant.service.reload import Files
from kant.service.roles import Role
from kant.service.socket_access import Certificate, check_users
from kant.service.tokens import TOKENS, change_keys, fresh_token, make_key

QUEUES = QueueConfig((Queue("red"), Queue("blue")))
GROUP = "nogroup"
TWO = ("nobody", "daemon")
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can run jobs as others")


def as_user(name: str, work: Callable[[], object]) -> str:
    """What `work` gives or refuses in a process of this user, who is in the group of the socket."""
    into, out = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            found = pwd.getpwnam(name)
            os.setgroups([found.pw_gid, grp.getgrnam(GROUP).gr_gid])
            os.setresgid(found.pw_gid, found.pw_gid, found.pw_gid)
            os.setresuid(found.pw_uid, found.pw_uid, found.pw_uid)
            try:
                said = repr(work())
            except InputError as error:
                said = f"refused: {error}"
            os.write(out, said.encode())
        finally:
            os._exit(0)
    os.close(out)
    with os.fdopen(into) as answer:
        said = answer.read()
    os.waitpid(pid, 0)
    return said


@pytest.fixture
def home() -> Iterator[Path]:
    """A home below folders that only root can change; that of pytest is closed to others."""
    folder = Path(tempfile.mkdtemp(prefix="kant-users-"))
    folder.chmod(0o711)
    yield folder / "home"
    shutil.rmtree(folder)


@pytest.fixture
def kant(home: Path) -> Iterator[Up]:
    with Up(home, queue_config=QUEUES, users=GROUP, listen="127.0.0.1:0") as up:
        yield up


@as_root
def test_a_job_runs_as_who_submitted_it_and_is_theirs_alone(kant: Up) -> None:
    client, script = ServiceClient(kant.home), "id -un; id -G; ulimit -n; umask; cat $KANT_RUN/spec.json"

    def submit(**wish: Any) -> Callable[[], object]:
        return lambda: client.post("/v1/jobs", asked(Path("/"), script, queue="red", **wish))["jobs"][0]

    name = "nobody"
    job = as_user(name, submit()).strip("'")
    (phase,) = kant.over(job)
    assert phase == "failed", "the files of a run are root's"
    groups = " ".join(map(str, os.getgrouplist(name, pwd.getpwnam(name).pw_gid)))
    said = kant.log(job).splitlines()
    assert said[:2] == [name, groups]
    assert "Permission denied" in said[-1]
    assert as_user(name, lambda: client.stream(client.job(job, "log"))[0]["X-Kant-End"] != "0") == "True"
    refused = f"refused: daemon: expected one of their own jobs for `log`, got 'a job of {name}'"
    assert as_user("daemon", lambda: client.stream(client.job(job, "log"))) == refused
    seen = as_user("daemon", lambda: client.get(client.job(job))["command"])
    assert seen == "[]", "nor what others run"
    own = kant.submit(script, queue="red")
    kant.over(own)
    assert kant.log(own).splitlines()[0] == "root"
    last = kant.submit("sleep 600", queue="red", grace_s=0.1)
    theirs = as_user("daemon", submit(hold=True)).strip("'")
    every = Filter(states=LIVE, queue="", user="", limit=0, before=None)
    done = as_user("daemon", lambda: MachinePlace(kant.home).cancel_all(every, ""))
    assert kant.phase(theirs) == "cancelled", done
    assert kant.phase(last) == "running", "all is all of one's own"
    assert "refused" in as_user(name, lambda: client.post("/v1/stop"))
    assert "refused" in as_user(name, lambda: client.get("/v1/audit"))


@as_root
def test_a_member_has_a_page_of_their_own_and_asks_what_if(kant: Up) -> None:
    """By the socket, without a token: what the page may is what they may over the socket."""
    at = ("--home", str(kant.home))
    wish = asked(Path("/"), "true", queue="red", hold=True)
    job = as_user("nobody", lambda: ServiceClient(kant.home).post("/v1/jobs", wish)["jobs"][0]).strip("'")

    def page(name: str, *more: str) -> str:
        return as_user(name, lambda: verb("page", *more, *at).out.strip()).strip("'")

    urls = [page("nobody"), page("nobody"), page("daemon"), page("nobody", "--new")]
    address = kant.client.get("/v1/whoami")["address"]
    assert all(re.fullmatch(rf"http://{re.escape(address)}/#token=kant_\S+", url) for url in urls), urls
    assert urls[0] == urls[1] and len(set(urls)) == 3
    old, theirs, mine = (url.partition("#token=")[2] for url in urls[1:])
    assert page_token(kant.home) not in (old, theirs, mine)

    def ask(token: str, method: str, path: str) -> tuple[int, Any]:
        line = http.client.HTTPConnection(address, timeout=PATIENCE_S)
        line.request(method, path, headers={"Authorization": f"Bearer {token}", "Content-Length": "0"})
        reply = line.getresponse()
        return reply.status, json.loads(reply.read())

    assert ask(old, "GET", "/v1/whoami")[0] == 401, "--new has shut it out"
    who = ask(mine, "GET", "/v1/whoami")[1]
    assert (who["user"], who["home"]) == ("nobody", pwd.getpwnam("nobody").pw_dir)
    assert ask(mine, "GET", f"/v1/jobs/{job}")[1]["command"]
    assert not ask(theirs, "GET", f"/v1/jobs/{job}")[1]["command"]
    assert ask(theirs, "POST", f"/v1/jobs/{job}/cancel")[0] == 403
    assert ask(mine, "GET", "/v1/audit")[0] == 403 and ask(mine, "POST", "/v1/stop")[0] == 403
    asking = ("whatif", "--nodes", "1", "--submit", "gpus=1,time=1h,queue=red", *at)
    owners = verb(*asking).out  # what it needs is loaded now: others cannot read the installation of these tests
    whatif = as_user("daemon", lambda: verb(*asking).out.splitlines()[1:])
    assert whatif == repr(owners.splitlines()[1:])
    assert "1 more node" in owners and "whatif-1 starts" in owners
    assert ask(mine, "POST", f"/v1/jobs/{job}/cancel")[0] == 200
    kant.over(job)


@as_root
def test_a_terminal_is_the_users_own(kant: Up) -> None:
    client = ServiceClient(kant.home)
    wish = asked(Path("/"), "id -un; stat -c %U $(tty)", queue="red", terminal={"pty": True})
    job = as_user("nobody", lambda: client.post("/v1/jobs", wish)["jobs"][0]).strip("'")
    kant.over(job)
    assert kant.log(job).split() == ["nobody", "nobody"]


@as_root
def test_files_and_commands_of_a_job_are_made_as_its_user(kant: Up) -> None:
    client, place = ServiceClient(kant.home), kant.home.parent / "theirs"
    place.mkdir()
    os.chown(place, pwd.getpwnam("nobody").pw_uid, -1)
    closed = kant.home.parent / "closed"
    closed.write_text("root's own")
    closed.chmod(0o600)
    tell = {"command": ["sh", "-c", "id -un > told; cat > /dev/null"], "on": ["finished"]}

    def submit(output: str, folder: Path) -> str:
        wish = asked(Path("/"), "id -un", queue="red", output=output, notices=[tell], workdir=str(folder))
        return as_user("nobody", lambda: client.post("/v1/jobs", wish)["jobs"][0]).strip("'")

    fine, not_theirs = submit("out", place), submit(str(closed), place)
    assert kant.over(fine, not_theirs) == ["finished", "failed"]
    assert ((place / "out").read_text(), (place / "out").owner()) == ("nobody\n", "nobody")
    assert closed.read_text() == "root's own" and "Permission denied" in kant.log(not_theirs)
    assert eventually(lambda: (place / "told").exists() and (place / "told").read_text() == "nobody\n")


@as_root
def test_whose_name_has_a_token_has_its_role_and_queues(kant: Up) -> None:
    client = ServiceClient(kant.home)
    key = make_key(fresh_token(), "daemon", Role.TENANT, ("blue",))
    change_keys(kant.home / TOKENS, lambda keys: (*keys, key))

    def submit(queue: str) -> str:
        return as_user("daemon", lambda: client.post("/v1/jobs", asked(Path("/"), "true", queue=queue)))

    assert "refused" in submit("red")
    assert "refused" not in submit("blue")


@as_root
def test_whom_this_machine_does_not_know_submits_nothing(kant: Up, monkeypatch: pytest.MonkeyPatch) -> None:
    token = fresh_token()
    change_keys(kant.home / TOKENS, lambda keys: (*keys, make_key(token, "a-stranger", Role.OPERATOR, ())))
    monkeypatch.setenv("KANT_HOME", str(kant.home))
    monkeypatch.setenv("KANT_URL", f"http://{kant.client.get('/v1/whoami')['address']}")
    monkeypatch.setenv("KANT_TOKEN", token)
    remote = ServiceClient(kant.home)
    assert remote.get("/v1/whoami")["user"] == "a-stranger"
    with pytest.raises(InputError, match="the user: expected an account on this machine, which runs the job"):
        remote.post("/v1/jobs", asked(Path("/"), "true", queue="red"))


@as_root
def test_what_is_left_behind_by_another_user_is_ended_too(kant: Up) -> None:
    client = ServiceClient(kant.home)
    wish = asked(Path("/"), "trap '' TERM; setsid sleep 600 & sleep 600", queue="red", grace_s=0.1)
    job = as_user("nobody", lambda: client.post("/v1/jobs", wish)["jobs"][0]).strip("'")
    kant.client.post(kant.client.job(job, "cancel"))
    assert kant.over(job) == ["cancelled"]


@as_root
def test_a_home_that_others_could_change_is_refused(home: Path) -> None:
    home.mkdir(mode=0o711)
    assert check_users(GROUP, home) == grp.getgrnam(GROUP).gr_gid
    with pytest.raises(InputError, match="--users: expected a group of this machine"):
        check_users("no-such-group", home)
    for folder in (home, home.parent):
        folder.chmod(0o777)
        with pytest.raises(InputError, match="only root can change"):
            check_users(GROUP, home)
        folder.chmod(0o711)
    os.chown(home.parent, 1, 1)
    with pytest.raises(InputError, match="only root can change"):
        check_users(GROUP, home)


# --- limits.conf -----------------------------------------------------------------------------------------------------

ANN = Account("ann", 1000, 100, (100, 27))
NOFILE, NPROC, CORE = resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC, resource.RLIMIT_CORE


@pytest.mark.parametrize(
    ("lines", "limits"),
    [
        (["* soft core 0", "* - nofile 512 # all"], [(CORE, 0, None), (NOFILE, 512, 512)]),
        (["ann hard nproc 50", "@video hard nproc 20", "* hard nproc 5"], [(NPROC, None, 50)]),
        (["@video soft nproc 20", "@other soft nproc 7", "* soft nproc 5"], [(NPROC, 20, None)]),
        (["* hard nproc 1", "* hard nproc unlimited"], [(NPROC, None, -1)]),
        ([":1000 hard nproc 3", "1001: hard nproc 4"], [(NPROC, None, 3)]),
        (["900:1000 hard nproc 3"], [(NPROC, None, 3)]),
        (["@:27 hard nproc 3", "@20:30 soft nproc 2"], [(NPROC, None, 3)]),
        (["@50:150 soft core 8"], [(CORE, 8192, None)]),
        (["ann -", "* hard nproc 5"], []),
        (["* -", "ann hard nproc 5"], [(NPROC, None, 5)]),
        (["", "# no", "ann", "ann soft", "ann soft nproc", "ann soft nproc many", "ann both nproc 1"], []),
        (["ann - maxlogins 4", "ann - locks 4"], []),
    ],
)  # fmt: skip
def test_the_limits_of_a_login(lines: list[str], limits: list[tuple[int, int | None, int | None]]) -> None:
    found = limited(ANN, frozenset({"users", "video"}), lines).limits
    assert sorted(found) == sorted(limits)


def test_of_root_only_what_is_said_of_root() -> None:
    root = replace(ANN, name="root", uid=0, gid=0, groups=(0,))
    lines = ["* hard nproc 5", "@root hard nproc 6", "root hard core 1", "* - priority 5", "root - nice -5"]
    found = limited(root, frozenset({"root"}), lines)
    assert sorted(found.limits) == [(CORE, None, 1024), (resource.RLIMIT_NICE, 25, 25)]
    assert limited(ANN, frozenset(), [*lines, "@100: - nonewprivs 1"]).nice == 5
    assert limited(ANN, frozenset(), ["@100: - nonewprivs 1"]).no_new_privs


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=40), max_size=5))
def test_no_line_stops_it(lines: list[str]) -> None:
    assert limited(ANN, frozenset({"users"}), lines).uid == 1000


@as_root
def test_they_hold_in_the_run(home: Path) -> None:
    """Those that cannot be had end the run: it never runs as root."""
    security = home.parent / "security"
    (security / "limits.d").mkdir(parents=True)
    lines = "nobody soft nofile 99\nnobody hard nofile 100\ndaemon hard nofile 9999999999999\n"
    (security / "limits.d" / "kant.conf").write_text(lines)
    wish = asked(Path("/"), "ulimit -Sn; ulimit -Hn; id -un", queue="red")
    with Up(home, prepare=lambda: setattr(accounts, "LIMITS", security), queue_config=QUEUES, users=GROUP) as kant:
        jobs = [as_user(name, lambda: ServiceClient(home).post("/v1/jobs", wish)["jobs"][0]) for name in TWO]
        able, unable = (job.strip("'") for job in jobs)
        assert kant.over(able, unable) == ["finished", "failed"]
        assert kant.log(able).split() == ["99", "100", "nobody"]
        assert kant.log(unable).startswith("kant: cannot run the job as daemon: ")


# --- HTTPS -----------------------------------------------------------------------------------------------------------


def certified(folder: Path, authority: trustme.CA) -> Certificate:
    """A certificate for this machine, in files."""
    issued = authority.issue_cert("localhost", "127.0.0.1")
    chain, key = folder / "chain.pem", folder / "key.pem"
    issued.private_key_pem.write_to_path(key)
    chain.write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
    return Certificate(chain, key)


def test_the_address_speaks_https_with_the_certificate_that_is_there_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = trustme.CA(), trustme.CA()
    certificate = certified(tmp_path, first)
    home = tmp_path / "home"
    with Up(home, listen="127.0.0.1:0", files=Files(certificate=certificate)) as kant:
        address = kant.client.get("/v1/whoami")["address"]
        assert url_of(address).startswith("https://127.0.0.1:")
        monkeypatch.setenv("KANT_HOME", str(home))
        monkeypatch.setenv("KANT_URL", address)
        monkeypatch.setenv("KANT_TOKEN", page_token(home))
        remote = ServiceClient(home)

        def trusts(authority: trustme.CA) -> bool:
            authority.cert_pem.write_to_path(tmp_path / "ca.pem")
            monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
            try:
                return bool(remote.get("/v1/whoami")["role"] == "operator")
            except InputError as error:
                assert "certificate verify failed" in str(error)
                return False

        assert (trusts(first), trusts(second)) == (True, False)
        certified(tmp_path, second)
        os.kill(kant.pid, signal.SIGHUP)
        assert eventually(lambda: trusts(second))
        certificate.key.write_text("none")
        os.kill(kant.pid, signal.SIGHUP)
        assert eventually(lambda: "--tls-cert" in kant.client.get("/v1/health")["complaint"])
        assert trusts(second), "a wrong one changes nothing"


def test_a_certificate_that_is_none_is_refused_at_the_start(tmp_path: Path) -> None:
    certificate = certified(tmp_path, trustme.CA())
    cases = [
        (
            dataclasses.replace(certificate, key=tmp_path / "absent"),
            "--tls-key .*absent: expected a file that can be read",
        ),
        (dataclasses.replace(certificate, key=certificate.chain), "--tls-cert .* expected a certificate in PEM"),
    ]
    for wrong, sentence in cases:
        with pytest.raises(InputError, match=sentence):
            serve(DaemonOptions(home=tmp_path / "home", profile=PROFILE, files=Files(certificate=wrong)))
    arguments = ("up", "--tls-key", certificate.key, "--home", tmp_path / "home")
    assert "--tls-cert and --tls-key: expected both" in verb(*arguments).refusal()
