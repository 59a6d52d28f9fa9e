"""Whatever comes in: exit code 0, 1 or 2, at most one line on standard error, and no traceback."""

from __future__ import annotations

import gzip
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.cli.command import Outcome, kant
from tests.examples import examples

from kant.scheduler import registry
from kant.scheduler.profile import builtin_texts
from kant.sim.options import SimOptions

relaxed = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


def civil(*arguments: str | Path) -> Outcome:
    outcome = kant(*arguments)
    outcome.is_civil()
    return outcome


# --- flags ---------------------------------------------------------------------------------------------------

words = st.text(st.characters(codec="utf-8", exclude_characters="\0/"), max_size=8)
numbers = st.one_of(st.integers().map(str), st.floats().map(str))
times = st.one_of(words, numbers, st.sampled_from(["0", "5m", "1h30m", "1d", "2w", "5 m", "-1", "1e3", "m", "1d1d"]))
FLAGS: dict[str, st.SearchStrategy[str]] = {
    "--window": st.one_of(words, st.tuples(times, times).map(":".join)),
    "--until": times,
    "--seed": st.one_of(words, numbers),
    "--slice": st.one_of(words, st.sampled_from(["batch", "research"])),
    "--format": st.one_of(words, st.sampled_from(["kant", "philly", "muri", "openb", "swf"])),
    "--profile": st.one_of(words, st.sampled_from(["fifo", "kant", "baseline", "srtf"])),
    "--cluster": st.one_of(
        words.filter(lambda word: not any(ch.isdigit() for ch in word)),
        st.sampled_from(["4x8", "1x1", "100x62", "4X8", "x8", "4x", "04x08", " 4x8 ", "4x8x2", "4x-8", "1e1x8", "٤x٨"]),
    ),
    "--json": st.sampled_from(["", "true", "false", "1", "x"]),
}


@relaxed
@given(st.dictionaries(st.sampled_from(sorted(FLAGS)), st.data(), max_size=4), st.data())
def test_flag_values(small: Path, place: Path, chosen: dict[str, Any], data: st.DataObject) -> None:
    flags = [f"{flag}={data.draw(FLAGS[flag], label=flag)}" for flag in chosen]
    out = place / "never"
    cluster = [] if any(flag.startswith("--cluster") for flag in flags) else ["--cluster", "4x8"]
    outcome = civil("simulate", small, *cluster, *flags)
    if outcome.code == 2:
        assert civil("simulate", small, *cluster, *flags, "--out", out).code == 2
        assert not out.exists()


@relaxed
@given(
    st.lists(
        st.one_of(words, st.sampled_from(["simulate", "trace", "check", "--json", "--", "-h", "show"])), max_size=4
    )
)
def test_command_lines(place: Path, arguments: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        if not {"demo", "-o", "--out"} & set(arguments):
            civil(*arguments)


# --- profiles ------------------------------------------------------------------------------------------------

values: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from([-1, 0, 1, 2, 60, 1000, 2**31, 2**62, 2**63 - 1, 2**63, 10**30]),
    st.sampled_from([0.5, -0.5, 1e-9, 1e300, float("inf"), float("nan"), True, False]),
    st.sampled_from(["", "fifo", "random", "index", "gpu", "limit", "none", "lower", "interval-overhead", "[/]"]),
    st.sampled_from([[], [[1, 1]], [[8, 1e9]], [[2**70, 1]], [5, 1], [-1], [10**15], {}, {"policy": "best-fit"}]),
    st.sampled_from([["x"], {"policy": ["x"]}, {"policy": "nobody"}]),
)


@st.composite
def profiles(draw: st.DrawFn) -> str:
    """A built-in profile with a few parts changed: mostly fields that exist, sometimes values that fit."""
    tree = tomllib.loads(draw(st.sampled_from(list(builtin_texts().values()))))
    for _ in range(draw(st.integers(1, 3))):
        part = draw(st.sampled_from(["order", "discipline", "placement", "simulation", "simulation", "name"]))
        if part == "name":
            tree[draw(st.sampled_from(["name", "about", "order", "extra"]))] = draw(values)
        elif part == "simulation":
            options = tree.setdefault(part, {})
            if isinstance(options, dict):
                options[draw(st.sampled_from([*SimOptions.__struct_fields__, "extra"]))] = draw(values)
        else:
            policy = draw(st.sampled_from(list(registry.policies(part).values())))
            tree[part] = {"policy": policy.name}
            fields = [field.name for field in policy.fields]
            if fields and draw(st.booleans()):
                tree[part][draw(st.sampled_from([*fields, "policy"]))] = draw(values)
    return "".join(f"{key} = {toml(value)}\n" for key, value in tree.items())


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value)
    return str(value).lower()


@given(profiles())
@settings(relaxed, max_examples=examples(15))
def test_profiles_that_were_changed(small: Path, journal: Path, place: Path, text: str) -> None:
    path = place / "profile.toml"
    path.write_text(text)
    checked = civil("check", path, "--kind", "profile")
    # Not to the end: preempting in vain, with a cost for each, can go on for ever.
    outcome = civil("simulate", small, "--cluster", "4x8", "--profile", path, "--until", "1h", "--json")
    assert outcome.code == checked.code, "check and simulate agree on what a profile is"
    if outcome.code == 0:
        summary = outcome.json()
        assert summary["jobs"] == summary["completed"] + summary["censored"] + summary["rejected"]
        civil("replay", journal, "--profile", path)


@relaxed
@given(st.sampled_from(list(builtin_texts().values())), st.data())
def test_profiles_with_other_bytes(place: Path, text: str, data: st.DataObject) -> None:
    path = place / "profile.toml"
    path.write_bytes(data.draw(damaged(text.encode())))
    civil("check", path, "--kind", "profile")
    civil("profiles", "show", path)


# --- files of every kind ---------------------------------------------------------------------------------------


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """`content` with a few pieces replaced, repeated or left out."""
    for _ in range(draw(st.integers(1, 3))):
        first = draw(st.integers(0, len(content)))
        last = min(len(content), first + draw(st.integers(0, 8)))
        kind = draw(st.sampled_from(["replace", "drop", "repeat", "cut"]))
        if kind == "replace":
            content = content[:first] + draw(st.binary(max_size=8)) + content[last:]
        elif kind == "drop":
            content = content[:first] + content[last:]
        elif kind == "repeat":
            content = content[:last] + content[first:]
        else:
            content = content[:first]
    return content


CLUSTER = """name = "mixed"
[topology]
nodes_per_leaf = 4
leaves_per_spine = 2
[[nodes]]
count = 3
gpus = 8
model = "H100"
cpu = 96
memory = "1TiB"
[[nodes]]
name = "small-{index:03d}"
gpus = 4
queues = ["batch"]
"""


@relaxed
@given(damaged(CLUSTER.encode()))
def test_clusters_with_other_bytes(small: Path, place: Path, content: bytes) -> None:
    path = place / "cluster.toml"
    path.write_bytes(content)
    described = civil("cluster", "describe", path, "--json")
    if described.code == 0 and described.json()["nodes"] <= 1000:
        civil("simulate", small, "--cluster", path, "--json")


@relaxed
@given(st.data())
def test_traces_with_other_bytes(small: Path, place: Path, data: st.DataObject) -> None:
    content = data.draw(damaged(small.read_bytes()[:400]))
    packed = data.draw(st.booleans())
    path = place / ("trace.csv.gz" if packed else "trace.csv")
    path.write_bytes(gzip.compress(content) if packed else content)
    if civil("check", path, "--kind", "workload").code == 0:
        civil("simulate", path, "--cluster", "4x8", "--json")


@relaxed
@given(
    st.one_of(st.binary(max_size=200), st.binary(max_size=50).map(lambda tail: b"\x1f\x8b\x08\x00" + tail)), st.data()
)
def test_random_bytes_as_any_file(small: Path, place: Path, content: bytes, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["f", "f.csv", "f.csv.gz", "f.toml", "f.jsonl", "f.swf"]))
    path = place / name
    path.write_bytes(content)
    out = place / "never"
    civil("check", path)
    for arguments in (
        ["simulate", path, "--cluster", "4x8", "--out", out],
        ["simulate", small, "--cluster", path, "--out", out],
        ["simulate", small, "--cluster", "4x8", "--profile", path, "--out", out],
        ["replay", path, "--out", out],
    ):
        assert civil(*arguments).code == 2
        assert not out.exists()


# --- journals --------------------------------------------------------------------------------------------------

# fmt: off
scalars: st.SearchStrategy[Any] = st.sampled_from(
    (-1, 0, 1, 2, 10**6, 2**31, 2**62, 2**63 - 1, 2**63, -(2**63), 10**30, 1.5, None, True,
     "", "x", "j1", "[/]", "\ud800", [], {}, [[1]], [[0, 0, 0, 0, 0, 0]])
)
# fmt: on


@st.composite
def journals(draw: st.DrawFn, lines: list[bytes]) -> list[bytes]:
    """The lines of a journal with one value changed, or lines left out, repeated or exchanged."""
    lines = list(lines)
    # The header is one line among many, and the one with the most to get wrong.
    at = draw(st.one_of(st.just(0), st.integers(0, len(lines) - 1)))
    kind = draw(st.sampled_from(["value", "value", "value", "drop", "repeat", "swap", "bytes"]))
    if kind == "value":
        tree = json.loads(lines[at])
        spots = list(places(tree))
        holder, key = draw(st.sampled_from(spots))
        if draw(st.integers(0, 4)):
            holder[key] = draw(scalars)
        else:
            del holder[key]
        lines[at] = json.dumps(tree).encode() + b"\n"
    elif kind == "drop":
        del lines[at]
    elif kind == "repeat":
        lines.insert(at, draw(st.sampled_from(lines)))
    elif kind == "swap":
        other = draw(st.integers(0, len(lines) - 1))
        lines[at], lines[other] = lines[other], lines[at]
    else:
        lines[at] = draw(damaged(lines[at]))
    return lines


def places(tree: Any) -> Any:
    """Every (container, key) in a JSON value."""
    for key, value in list(tree.items() if isinstance(tree, dict) else enumerate(tree)):
        yield tree, key
        if isinstance(value, dict | list):
            yield from places(value)


@settings(relaxed, max_examples=examples(25))
@given(st.data())
def test_journals_that_were_changed(journal: Path, place: Path, data: st.DataObject) -> None:
    path = place / "journal.jsonl"
    path.write_bytes(b"".join(data.draw(journals(journal.read_bytes().splitlines(keepends=True)))))
    other = data.draw(st.sampled_from([[], ["--profile", "fifo"], ["--profile", "srtf", "--json"]]))
    civil("check", path, "--kind", "journal")
    civil("replay", path, *other)
    civil(
        "explain",
        data.draw(st.sampled_from(["j0", "j1", "j7", "j30"])),
        path,
        *data.draw(st.sampled_from([[], ["--json"]])),
    )
