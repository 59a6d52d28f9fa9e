"""Verbs of every day load little, read their lines as the whole command line does, and print as rich would."""

from __future__ import annotations

import contextlib
import io
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from cyclopts import CycloptsError
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.table import Table

from kant.cli import plain, quick
from kant.cli.verbs import app_of
from kant.service.socket_http import BrokenAnswerError, HttpResponse

WAITING = {
    "id": "1", "name": "train", "queue": "default", "user": "me", "phase": "waiting", "gpus": 1, "waits": "no room",
    "reason": "", "started": -1, "ended": -1, "submitted": 0, "array": -1,
}  # fmt: skip
WHY = {
    "job": "1", "phase": "waiting", "sentence": "no room", "waited_us": {"total": 5, "capacity": 5},
    "answer": {
        "time_us": 9, "since_us": 4, "facts": [{"sentence": "0 GPUs are free"}], "remedies": [],
        "among_rivals": {"rank": 1, "of": 2}, "in_queue": {"rank": 1, "of": 1},
        "as_of_us": 9, "rests_on": None, "starts_now_if": {"changes": [], "none": ""},
        "expected_us": {"p50": 20, "p90": None, "never": False},
        "earlier": {"answers": 10, "kept": 9, "kept_p50": 9, "calibrated": True},
        "wait_or_place": None,
    },
}  # fmt: skip
ANSWERS: dict[str, Any] = {
    "POST /v1/jobs": {"jobs": ["1"]},
    "GET /v1/jobs/1": {"job": WAITING},
    "GET /v1/jobs": {"jobs": [WAITING], "next": None},
    "GET /v1/health": {"now_us": 10},
    "GET /v1/jobs/1/why": WHY,
}

ALL = {
    "kant", "kant.cli", "kant.cli.amounts", "kant.cli.app", "kant.cli.everyday", "kant.cli.machine_place",
    "kant.cli.output", "kant.cli.place", "kant.cli.places", "kant.cli.quick", "kant.model", "kant.model.errors",
    "kant.model.job_request", "kant.model.units", "kant.service", "kant.service.client", "kant.service.socket_http",
}  # fmt: skip
LOADED = {
    ("submit", "--gpus", "1", "--", "true"): ALL | {"kant.cli.scripts"},
    ("jobs",): ALL | {"kant.cli.plain", "kant.cli.job_table"},
    ("why", "1"): ALL | {"kant.cli.plain", "kant.cli.show_everyday", "kant.insight", "kant.insight.track_record"},
}
SLOW = {"argparse", "asyncio", "ctypes", "dataclasses", "datetime", "email", "http", "inspect", "logging", "ssl"}
"""Modules of the standard library that take as long to load as such a verb to run."""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """The home of something that answers as Kant does."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "kant.sock"))
        server.listen()

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    line = server.accept()[0]
                    with line, line.makefile("rb") as stream:
                        method, target, _ = stream.readline().decode().split()
                        head = dict(row.decode().split(":", 1) for row in iter(stream.readline, b"\r\n"))
                        stream.read(int(head.get("Content-Length", 0)))
                        body = json.dumps(ANSWERS[f"{method} {target.partition('?')[0]}"]).encode()
                        line.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

        threading.Thread(target=serve, daemon=True).start()
        yield tmp_path
        server.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("line", LOADED)
def test_what_is_loaded_is_just_this(line: tuple[str, ...], home: Path) -> None:
    program = (
        "import sys; before = set(sys.modules); from kant.cli.app import run; code = run(sys.argv[1:]); "
        "import json; print(json.dumps([code, sorted(set(sys.modules) - before)]), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *line], env={**os.environ, "KANT_HOME": str(home)}, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    code, loaded = json.loads(done.stderr)
    assert code == 0
    assert {name for name in loaded if name.partition(".")[0] == "kant"} == LOADED[line]
    foreign = {name.partition(".")[0] for name in loaded} - {"kant"} - sys.stdlib_module_names
    assert not foreign, "only Kant and the standard library"
    assert not SLOW & set(loaded)
    assert done.stdout


CORE = {"kant.cluster", "kant.scheduler", "kant.queueing", "kant.placement", "kant.workload", "kant.sim", "kant.local"}


@pytest.mark.parametrize("verb", ["run", "alloc", "attach", "shell"])
def test_terminals_load_nothing_of_the_core(verb: str, tmp_path: Path) -> None:
    words = {"run": ["--", "true"], "alloc": [], "attach": ["1"], "shell": ["1"]}[verb]
    program = (
        "import sys; from kant.cli.app import run; code = run(sys.argv[1:]); "
        "import json; print(json.dumps([code, sorted(sys.modules)]), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, verb, *words], env={**os.environ, "KANT_HOME": str(tmp_path)},
        capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    *said, last = done.stderr.splitlines()
    code, loaded = json.loads(last)
    assert code == 2 and "kant up" in said[0], "nobody is there"
    rooms = {".".join(name.split(".")[:2]) for name in loaded}
    assert "kant.cli" in rooms and not rooms & CORE
    assert not {"numpy", "numba", "polars", "aiohttp"} & rooms


TEXTS = st.sampled_from(["1", "0.5", "2h", "a b", "x=y", "A=1", "-", "--", "-1", "", "1e3", "é", "07", " 3", "true"])
WORDS = st.one_of(
    TEXTS,
    st.sampled_from(sorted({option for known in quick.KNOWN.values() for option in known})),
    st.sampled_from(["--gpus=2", "--name=--x", "--time=", "--kube", "-n", "--hold=true", "--nothing", "--no-hold"]),
)


@given(st.sampled_from(sorted(quick.KNOWN)), st.lists(WORDS, max_size=7))
def test_a_line_is_read_as_the_whole_command_line_reads_it_or_not_at_all(verb: str, words: list[str]) -> None:
    read = quick.parsed([verb, *words])
    if read is None or (verb == "why" and len(read[0]) != 1) or (verb == "jobs" and read[0]):
        return
    try:
        _, bound, _ = app_of(verb).parse_args([verb, *words], exit_on_error=False, print_error=False)
    except CycloptsError as error:
        raise AssertionError(f"{words} is refused: {error}") from None
    given = {name: value for name, value in bound.arguments.items() if name != "there"}
    own = {"submit": {"command": read[0]}, "jobs": {}, "why": {"job": read[0][0] if read[0] else None}}[verb]
    assert given == {name: value for name, value in (own | read[1]).items() if value != ()}


def test_plain_lines_are_read_at_once() -> None:
    line = "submit --gpus 0.5 --time=2h --env A=1 --env B=2 --hold --no-preemptible -- python -u x.py --gpus 3"
    assert quick.parsed(line.split()) == (
        ("python", "-u", "x.py", "--gpus", "3"),
        {"gpus": 0.5, "time": "2h", "env": ("A=1", "B=2"), "hold": True, "preemptible": False},
    )
    assert quick.parsed(["jobs", "--all", "--limit", "20", "--json"]) == ((), {"all": True, "limit": 20, "json": True})
    for other in ("jobs --help", "jobs --kube", "jobs --limit x", "submit --gpus two -- x", "submit x --y"):
        assert quick.parsed(other.split()) is None


CELLS = st.text(st.sampled_from("abc def-é漢字ー"), max_size=30)
TABLES = st.integers(1, 5).flatmap(
    lambda width: st.lists(st.lists(CELLS, min_size=width, max_size=width), min_size=1, max_size=4)
)


def printed(rows: list[list[str]], right: list[str], columns: int | None, whole: Sequence[str] = ()) -> list[str]:
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out):
        patch.delenv("COLUMNS", raising=False)
        patch.delenv("FORCE_COLOR", raising=False)
        if columns is not None:
            patch.setenv("COLUMNS", str(columns))
        plain.table(rows[0], rows[1:], right, whole)
    return out.getvalue().splitlines()


@given(TABLES, st.booleans())
def test_a_table_that_fits_is_as_rich_has_it(rows: list[list[str]], flush: bool) -> None:
    rows = [[" ".join(cell.split()) or "x" for cell in row] for row in rows]
    right = rows[0] if flush else []
    table = Table(box=None, pad_edge=False)
    for name in rows[0]:
        table.add_column(name, justify="right" if flush else "left")
    for row in rows[1:]:
        table.add_row(*row)
    out = io.StringIO()
    Console(file=out, width=10_000, markup=False, emoji=False, highlight=False).print(table)
    assert printed(rows, right, None) == [line.rstrip() for line in out.getvalue().splitlines()]


@given(TABLES, st.integers(1, 60))
def test_a_table_fits_any_width_and_loses_no_letter(rows: list[list[str]], columns: int) -> None:
    lines = printed(rows, [], columns)
    room = max(columns, 4 * len(rows[0]))  # a column has room for one wide letter
    assert all(plain.cells_of(line) <= room for line in lines), lines
    letters = sorted(letter for row in rows for cell in row for letter in cell if letter != " ")
    assert sorted(letter for line in lines for letter in line if letter != " ") == letters


@given(
    st.lists(st.from_regex("[a-z]{1,20}-[0-9a-z]{5}", fullmatch=True), min_size=1, max_size=3),
    CELLS,
    st.integers(1, 60),
)
def test_an_id_is_never_broken_so_that_it_can_be_copied(ids: list[str], other: str, columns: int) -> None:
    rows = [["because", "job", "name"], *([other, id, other] for id in ids)]
    lines = printed(rows, [], columns, ["job"])
    assert [word for line in lines for word in line.split() if word in ids] == ids
    widest = max(map(len, ids))
    assert all(plain.cells_of(line) <= max(columns, widest + 8) for line in lines), lines


def test_styles_are_for_terminals(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    plain.section("\x1b[31mred", ["line"])
    monkeypatch.setenv("FORCE_COLOR", "1")
    plain.section("title", ["line"])
    monkeypatch.setenv("NO_COLOR", "1")
    plain.section("title", ["line"])
    assert capsys.readouterr().out.splitlines() == [
        "\\x1b[31mred", "  line", "\x1b[36mtitle\x1b[0m", "  line", "title", "  line",
    ]  # fmt: skip


HEADERS = st.dictionaries(st.sampled_from(["X-Kant-Offset", "Retry-After", "Server"]), st.sampled_from(["1", "a b"]))


@given(st.integers(200, 599), HEADERS, st.binary(max_size=50), st.booleans())
def test_answers_are_read_whole(status: int, headers: dict[str, str], body: bytes, said: bool) -> None:
    head = [f"HTTP/1.0 {status} So it is", *(f"{name}: {value}" for name, value in headers.items())]
    head += [f"content-length: {len(body)}"] if said else []
    text = "\r\n".join([*head, "", ""]).encode() + body
    found = HttpResponse(io.BufferedReader(io.BytesIO(text)))  # type: ignore[arg-type]
    assert (found.status, found.reason, found.read()) == (status, "So it is", body)
    assert {name: found.getheader(name.upper()) for name in headers} == headers
    for end in range(len(text) if said else len(text) - len(body) - 1):
        with pytest.raises((BrokenAnswerError, ConnectionError)):
            HttpResponse(io.BufferedReader(io.BytesIO(text[:end]))).read()  # type: ignore[arg-type]
