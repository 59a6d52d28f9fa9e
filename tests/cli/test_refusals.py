"""Whatever is wrong with what a person gives us: one sentence, exit code 2, and nothing written."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.command import KANT, Outcome, environment, kant, process, snapshot, without_progress

Give = Callable[[str, str | bytes], Path]

PROFILE = '[order]\npolicy = "{order}"\n[discipline]\npolicy = "{discipline}"\n[placement]\npolicy = "{placement}"\n'
PLAIN = PROFILE.format(order="fifo", discipline="strict", placement="first-fit")


@pytest.fixture
def give(tmp_path: Path) -> Give:
    def write(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


def refused(tmp_path: Path, *arguments: str | Path) -> str:
    """The sentence. A folder for results that does not exist is not made."""
    before = snapshot(tmp_path)
    sentence = kant(*arguments, "--out", tmp_path / "new" / "out").refusal()
    assert snapshot(tmp_path) == before
    return sentence


FLAGS = {
    "cluster that is no file": (["--cluster", "nowhere"], ["cluster", "NxG", "'nowhere'"]),
    "no nodes": (["--cluster", "0x8"], ["cluster", "'0x8'"]),
    "too many GPUs in a node": (["--cluster", "4x999"], ["cluster", "'4x999'"]),
    "too many nodes": (["--cluster", "99999999999x8"], ["cluster"]),
    "a folder as a cluster": (["--cluster", "."], ["cluster", "'.'"]),
    "profile that is no file": (["--profile", "nowhere"], ["--profile", "'nowhere'", "baseline"]),
    "a folder as a profile": (["--profile", "."], ["--profile", "'.'"]),
    "no format": (["--format", "xml"], ["format", "'xml'", "philly"]),
    "another format": (["--format", "philly"], ["small.csv"]),
    "no such slice": (["--slice", "nobody"], ["'nobody'", "batch, research"]),
    "a window without a colon": (["--window", "5d"], ["--window", "'5d'", "A:B"]),
    "a window that ends first": (["--window", "2h:1h"], ["--window", "'2h:1h'"]),
    "a window of nonsense": (["--window", "a:b"], ["--window", "'a'"]),
    "an empty window": (["--window", "5d:6d"], ["small.csv", "window"]),
    "until nonsense": (["--until", "soon"], ["--until", "'soon'"]),
    "until before the beginning": (["--until=-5"], ["--until", "'-5'"]),
    "until beyond all time": (["--until", "9" * 400], ["--until"]),
    "a negative seed": (["--seed", "-1"], ["--seed", "-1", "0 to 2^63 - 1"]),
    "a seed beyond 63 bits": (["--seed", str(2**63)], ["--seed"]),
    "a seed of many digits": (["--seed", "9" * 60], ["--seed"]),
    "a seed that is no number": (["--seed", "one"], ["--seed", "one"]),
    "a fractional seed": (["--seed", "1.5"], ["--seed", "1.5"]),
    "an unknown flag": (["--colour", "red"], ["--colour"]),
    "a file too many": (["more.csv"], ["more.csv"]),
    "json with a value": (["--json=maybe"], ["--json", "maybe"]),
    "not UTF-8": (["--slice", "\udcff"], ["UTF-8"]),
}


@pytest.mark.parametrize("name", FLAGS)
def test_flags(name: str, small: Path, tmp_path: Path) -> None:
    flags, words = FLAGS[name]
    cluster = [] if "--cluster" in flags else ["--cluster", "4x8"]
    sentence = refused(tmp_path, "simulate", small, *cluster, *flags)
    for word in words:
        assert word in sentence
    if "--profile" not in flags:
        compared = refused(tmp_path, "compare", small, *cluster, *flags, "--profile", "fifo", "--profile", "kant")
        assert compared == sentence.replace("kant simulate", "kant compare")


@pytest.mark.parametrize("number", ["", "x", "nan", "inf", "-1", "0", "1e999"])
def test_numbers_of_the_generator(number: str, tmp_path: Path) -> None:
    path = tmp_path / "w.csv"
    for flag in ("--days", "--jobs", "--load", "--gpus"):
        others = {"--load": ["--gpus", "64"], "--gpus": ["--load", "0.9"]}.get(flag, [])
        kant("trace", "generate", "philly", "--out", path, f"{flag}={number}", *others).refusal()
    for flag in ("--days", "--load", "--nodes"):
        kant("demo", "--out", tmp_path / "out", f"{flag}={number}").refusal()
    assert "--seed" in kant("demo", "--out", tmp_path / "out", "--seed", "-1").refusal()
    assert "--nodes" in kant("demo", "--out", tmp_path / "out", "--nodes", "4.5").refusal()
    assert "--jobs" in kant("trace", "generate", "philly", "--out", path, "--jobs", "9" * 5000).refusal()
    assert "philly" in kant("demo", "--out", tmp_path / "out", "--row", "x").refusal()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        [""],
        ["simulate"],
        ["compare", "SMALL"],
        ["compare", "SMALL", "--profile", "kant"],
        ["replay"],
        ["check"],
        ["check", "nowhere"],
        ["check", "."],
        ["check", "SMALL", "--kind", "poem"],
        ["replay", "nowhere"],
        ["replay", "."],
        ["simulate", "nowhere"],
        ["simulate", "."],
        ["profiles", "show"],
        ["profiles", "show", "nobody"],
        ["profiles", "hide"],
        ["cluster", "describe"],
        ["cluster", "describe", "nowhere"],
        ["trace", "nonsense"],
        ["trace", "describe", "nowhere"],
        ["trace", "convert", "SMALL", "."],
        ["trace", "convert", "SMALL", "x.xls"],
        ["trace", "convert", "SMALL", "nowhere/x.csv"],
        ["trace", "generate", "atlantis", "--out", "x.csv"],
        ["trace", "generate", "philly"],
        ["trace", "generate", "philly", "--out", "nowhere/x.csv", "--jobs", "5"],
        ["a" * 5000],
        ["check", "a" * 5000],
        ["simulate", "SMALL", "--profile", "a" * 5000],
        ["simulate", "SMALL", "--cluster", "a" * 5000],
        ["check", "two\nlines"],
    ],
    ids=lambda arguments: " ".join(arguments)[:40].replace("\n", " ") or "nothing",
)
def test_commands(arguments: list[str], small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    kant(*(str(small) if token == "SMALL" else token for token in arguments)).refusal()
    assert not list(tmp_path.iterdir())


PROFILES: dict[str, tuple[str | bytes, list[str]]] = {
    "empty": ("", ["order"]),
    "no TOML": ("order", ["TOML"]),
    "not UTF-8": (b"name = '\xff'", []),
    "bytes": (bytes(range(256)), []),
    "nested too deeply": ("a = " + "[" * 5000 + "]" * 5000, []),
    "a number too long to read": ("a = " + "9" * 5000, []),
    "an unknown part": (PLAIN + "[speed]\n", ["speed", "simulation"]),
    "a name that is no text": ("name = 1\n" + PLAIN, ["name"]),
    "a part that is no table": ('order = "fifo"\n', ["order"]),
    "simulation that is no table": ("simulation = 1\n" + PLAIN, ["simulation"]),
    "no policy": (PLAIN.replace('policy = "fifo"\n', ""), ["order.policy", "fifo"]),
    "an unknown policy": (PLAIN.replace("first-fit", "magic"), ["placement.policy", "'magic'", "best-fit"]),
    "a policy of another kind": (PLAIN.replace('"strict"', '"fifo"'), ["discipline.policy", "strict"]),
    "a policy that is a number": (PLAIN.replace('"fifo"', "1"), ["order.policy"]),
    "a policy that is a list": (PLAIN.replace('"fifo"', '["fifo"]'), ["order.policy"]),
    "a policy that is a table": (PLAIN.replace('"fifo"', "{}"), ["order.policy"]),
    "a policy that is a date": (PLAIN.replace('"fifo"', "2020-01-01"), ["order.policy"]),
    "an unknown field": (PLAIN + "x = 1\n", ["placement", "ties", "`x`"]),
    "a field of the wrong type": (PLAIN + "ties = 1\n", ["placement", "ties"]),
    "an inner policy that is a list": (
        PLAIN.replace("first-fit", "consolidated") + 'single = {policy = ["x"]}\n',
        ["placement", "single"],
    ),
    "an inner policy of the wrong sort": (
        PLAIN.replace("first-fit", "consolidated") + 'remainder = {policy = "consolidated"}\n',
        ["placement", "remainder"],
    ),
    "an unknown option": (PLAIN + "[simulation]\nx = 1\n", ["simulation", "`x`"]),
    "an option out of range": (PLAIN + "[simulation]\nmerge_ends = inf\n", ["simulation.merge_ends"]),
    "an option that is not a number": (PLAIN + "[simulation]\ninflate = nan\n", ["simulation.inflate"]),
    "a negative cost": (PLAIN + "[simulation]\nresume_cost = [[1, -1]]\n", ["simulation.resume_cost"]),
    "thresholds below zero": (
        PROFILE.format(order="las", discipline="preemptive", placement="first-fit").replace(
            '"las"', '"las"\nthresholds_gpu_s = [-1]'
        ),
        ["order", "thresholds_gpu_s"],
    ),
    "thresholds that fall": (
        PROFILE.format(order="las", discipline="preemptive", placement="first-fit").replace(
            '"las"', '"las"\nthresholds_gpu_s = [5, 1]'
        ),
        ["order", "thresholds_gpu_s"],
    ),
    "thresholds beyond 64 bits": (
        PROFILE.format(order="las", discipline="preemptive", placement="first-fit").replace(
            '"las"', '"las"\nthresholds_gpu_s = [1000000000000000]'
        ),
        ["order", "thresholds_gpu_s"],
    ),
    "a patience below zero": (PLAIN.replace('"strict"', '"preemptive"\nmin_run_s = -1'), ["discipline", "min_run_s"]),
    "a patience beyond 64 bits": (
        PLAIN.replace('"strict"', '"preemptive"\nmin_run_s = 9223372036854775807'),
        ["discipline", "min_run_s"],
    ),
    "a unit of no cores": (PLAIN.replace("first-fit", "dotprod") + "cpu_unit = 0\n", ["placement", "cpu_unit"]),
    "a unit of no GPUs": (PLAIN.replace("first-fit", "gpu-clustering") + "gpu_unit = 0\n", ["placement", "gpu_unit"]),
    "a negative unit": (PLAIN.replace("first-fit", "best-fit-cpu-gpu") + "gpu_unit = -8\n", ["placement", "gpu_unit"]),
    "a unit beyond 64 bits": (
        PLAIN.replace("first-fit", "best-fit-cpu-gpu") + f"gpu_unit = {10**30}\n",
        ["placement", "gpu_unit"],
    ),
}


@pytest.mark.parametrize("name", PROFILES)
def test_profiles(name: str, small: Path, tmp_path: Path, give: Give) -> None:
    content, words = PROFILES[name]
    if isinstance(content, str) and PLAIN in content and not content.startswith("name"):
        content = f'name = "mine"\n{content}'
    path = give("bad.toml", content)
    sentence = refused(tmp_path, "simulate", small, "--cluster", "4x8", "--profile", path)
    for word in (str(path), *words):
        assert word in sentence


@pytest.mark.parametrize("fault", ["x = 1\n", "[simulation]\nretries = -1\n"])
def test_each_verb_that_reads_a_file_refuses_it_with_the_same_sentence_and_keeps_what_is_there(
    small: Path, journal: Path, tmp_path: Path, give: Give, fault: str
) -> None:
    (tmp_path / "old").mkdir()
    give("old/summary.json", "kept")
    profile, trace = (
        give("bad.toml", f'name = "mine"\n{PLAIN}{fault}'),
        give("w.csv", "submit_s,runtime_s,gpus\n0,-1,1\n"),
    )
    before = snapshot(tmp_path)
    for out in (tmp_path / "old", tmp_path / "new" / "out"):
        to = ("--cluster", "4x8", "--out", out)
        for verbs in (
            (
                ("simulate", small, *to, "--profile", profile),
                ("simulate", small, *to, "--profile", profile, "--json"),
                ("compare", small, *to, "--profile", "kant", "--profile", profile),
                ("replay", journal, "--out", out, "--profile", profile),
                ("check", profile, "--kind", "profile"),
            ),
            (
                ("simulate", trace, *to),
                ("compare", trace, *to, "--profile", "kant", "--profile", "fifo"),
                ("check", trace, "--kind", "workload"),
                ("trace", "describe", trace),
                ("trace", "convert", trace, tmp_path / "converted.csv"),
            ),
        ):
            assert len({kant(*verb).refusal() for verb in verbs}) == 1
        assert snapshot(tmp_path) == before


@pytest.mark.parametrize("discipline", ["preemptive", "repack", "pooled", "loss", "strict"])
@pytest.mark.parametrize("speed", ["steady", "placed", "interval-overhead"])
def test_static_packing_takes_any_discipline_or_says_why_not(
    discipline: str, speed: str, small: Path, journal: Path, tmp_path: Path, give: Give
) -> None:
    text = PROFILE.format(order="srtf", discipline=discipline, placement="first-fit")
    path = give("static.toml", text + f'[simulation]\nstatic = true\nspeed = "{speed}"\n')
    kant("simulate", small, "--cluster", "4x8", "--profile", path).is_civil()
    kant("replay", journal, "--profile", path).is_civil()


TRACES: dict[str, tuple[str, str | bytes, list[str]]] = {
    "empty": ("w.csv", "", []),
    "blank": ("w.csv", "\n\n  \n", []),
    "only a header": ("w.csv", "submit_s,runtime_s,gpus\n", []),
    "no trace": ("w.csv", "hello\n", ["philly"]),
    "bytes": ("w.csv", bytes(range(256)), []),
    "an empty gzip file": ("w.csv.gz", b"", []),
    "a torn gzip file": ("w.csv.gz", b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03abc", []),
    "a torn Parquet file": ("w.parquet", b"PAR1abcdPAR1", []),
    "a short row": ("w.csv", "submit_s,runtime_s,gpus\n0,1,1\n5,1\n", ["3"]),
    "a cell that is no number": ("w.csv", "submit_s,runtime_s,gpus\n0,1,one\n", ["2", "gpus", "one"]),
    "a negative run time": ("w.csv", "submit_s,runtime_s,gpus\n0,-1,1\n", ["2", "runtime_s", "-1"]),
    "no number at all": ("w.csv", "submit_s,runtime_s,gpus\n0,nan,1\n", ["2", "runtime_s"]),
    "too large a number": ("w.csv", f"submit_s,runtime_s,gpus\n0,{10**30},1\n", ["2", "runtime_s"]),
    "an id twice": ("w.csv", "id,submit_s,runtime_s,gpus\na,0,1,1\na,1,1,1\n", ["a"]),
}


@pytest.mark.parametrize("name", TRACES)
def test_traces(name: str, tmp_path: Path, give: Give) -> None:
    file, content, words = TRACES[name]
    path = give(file, content)
    sentence = refused(tmp_path, "simulate", path, "--cluster", "4x8")
    for word in (str(path), *words):
        assert word in sentence


CLUSTERS: dict[str, tuple[str, str | bytes, list[str]]] = {
    "empty": ("c.toml", "", ["nodes"]),
    "no TOML": ("c.toml", "[[nodes]", ["TOML"]),
    "no nodes": ("c.toml", "nodes = []\n", []),
    "an unknown key": ("c.toml", "[[nodes]]\ngpus = 8\ncolour = 1\n", ["colour"]),
    "no GPUs said": ("c.toml", "[[nodes]]\ncount = 8\n", ["gpus"]),
    "GPUs below zero": ("c.toml", "[[nodes]]\ngpus = -1\n", ["gpus", "-1"]),
    "too many nodes": ("c.toml", "[[nodes]]\ngpus = 8\ncount = 99999999\n", ["count"]),
    "another extension": ("c.txt", "[[nodes]]\ngpus = 8\n", [".toml"]),
    "bytes": ("c.csv", bytes(range(256)), []),
    "a torn gzip file": ("c.csv.gz", b"\x1f\x8b\x08\x00", []),
    "a wrong header": ("c.csv", "a,b\n1,2\n", ["line 1"]),
    "a wrong cell": ("c.csv", "sn,cpu_milli,memory_mib,gpu,model\nn,x,1,1,G2\n", ["line 2"]),
}


@pytest.mark.parametrize("name", CLUSTERS)
def test_clusters(name: str, small: Path, tmp_path: Path, give: Give) -> None:
    file, content, words = CLUSTERS[name]
    path = give(file, content)
    sentence = refused(tmp_path, "simulate", small, "--cluster", path)
    for word in (str(path), *words):
        assert word in sentence
    assert kant("cluster", "describe", path).refusal() == sentence


def test_places_where_nothing_can_be_written(small: Path, journal: Path, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("kept")
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    dangling = tmp_path / "dangling"
    dangling.symlink_to(tmp_path / "nothing")
    before = snapshot(tmp_path)
    for out in (
        file,
        file / "below",
        loop / "below",
        dangling,
        Path("/dev/full"),
        Path("/dev/null/x"),
        Path("/proc/x"),
    ):
        assert str(out) in kant("simulate", small, "--cluster", "4x8", "--out", out).refusal()
        assert str(out) in kant("replay", journal, "--out", out).refusal()
    assert str(file) in kant("trace", "convert", small, file).refusal()
    kant("trace", "convert", small, file / "x.csv").refusal()
    assert snapshot(tmp_path) == before


def test_files_that_may_not_be_read_or_written(small: Path, journal: Path, tmp_path: Path) -> None:
    """For anyone but the superuser, who may read and write everything."""
    secret = tmp_path / "secret.csv"
    secret.write_bytes(small.read_bytes())
    secret.chmod(0)
    shut = tmp_path / "shut"
    shut.mkdir(mode=0o555)
    if os.access(secret, os.R_OK):
        pytest.skip("this user may read and write everything")
    for arguments in (
        ["simulate", secret, "--cluster", "4x8"],
        ["check", secret],
        ["trace", "describe", secret],
        ["replay", secret],
        ["simulate", small, "--cluster", secret],
        ["simulate", small, "--cluster", "4x8", "--profile", secret],
        ["simulate", small, "--cluster", "4x8", "--out", shut],
        ["simulate", small, "--cluster", "4x8", "--out", shut / "below"],
        ["replay", journal, "--out", shut],
        ["trace", "convert", small, shut / "x.csv"],
    ):
        kant(*arguments).refusal()
    assert not list(shut.iterdir())


@pytest.mark.long
def test_a_disk_that_is_full(small: Path, tmp_path: Path) -> None:
    """No file may grow beyond some KiB: the same to a program as a full disk."""
    big = tmp_path / "big.csv"
    rows = [f"{i},{i},{100 + i},1" for i in range(400)]
    big.write_text("\n".join(["id,submit_s,runtime_s,gpus", *rows]) + "\n")
    for room, where, arguments in (
        (64, "out", ["simulate", big, "--cluster", "4x8", "--out", tmp_path / "out"]),  # the journal
        (64, "out2", ["simulate", small, "--cluster", "4x8", "--out", tmp_path / "out2", "--json"]),
        (2, "all.parquet", ["trace", "convert", big, tmp_path / "all.parquet"]),
    ):
        done = subprocess.run(
            ["sh", "-c", f'ulimit -f {room}; trap "" XFSZ; exec "$@"', "sh", KANT, *arguments],
            capture_output=True, text=True, env=environment(), timeout=120, check=False,
        )  # fmt: skip
        sentence = Outcome(done.returncode, done.stdout, without_progress(done.stderr)).refusal()
        assert sentence.startswith(f"kant: {tmp_path / where}") and "a place that can be written" in sentence
    assert not (tmp_path / "out2" / "report.html").exists()
    for arguments in (["profiles"], ["simulate", small, "--cluster", "4x8"], ["--help"]):
        with Path("/dev/full").open("wb") as full:
            Outcome(*_codes(process(*arguments, stdout=full))).refusal()


@pytest.mark.parametrize(
    ("words", "verb"),
    [("simulate --zz", "simulate"), ("trace convert a", "trace convert"), ("trace conv", "trace"), ("nonsense", "")],
)
def test_a_usage_error_names_the_help_of_its_verb(words: str, verb: str) -> None:
    assert f"See `{' '.join(['kant', *verb.split()])} --help`." in kant(*words.split()).refusal()


def test_a_folder_is_no_file_to_check(tmp_path: Path) -> None:
    assert kant("check", tmp_path).refusal() == f"kant: {tmp_path}: expected a regular file\n"


def _codes(outcome: Outcome) -> tuple[int, str, str]:
    return outcome.code, "", outcome.err


@pytest.mark.parametrize(
    ("words", "such"),
    [("submit --gpu 1 -- x", ", such as --gpus,"), ("run --tim=2h x", ", such as --time,"), ("submit --zz x", "")],
)
def test_an_unknown_option_of_a_job_is_named_with_the_nearest_one(words: str, such: str) -> None:
    option = words.split()[1].partition("=")[0]
    expected = f"kant: {option}: expected an option of `kant submit`{such} or a program after --\n"
    assert kant(*words.split()).refusal() == expected


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--pods", "2"], "--pods: expected --kube as well, got 2"),
        (["--within", "leaf"], "--within: expected --kube as well, got 'leaf'"),
        (["--priority-class", "high"], "--priority-class: expected --kube as well, got 'high'"),
        (["--gpus", "nan"], "--gpus: expected a number, got nan"),
        (["--cpus", "inf"], "--cpus: expected a number, got inf"),
    ],
)
def test_an_option_that_would_be_ignored_or_is_no_number_is_refused(options: list[str], sentence: str) -> None:
    """No Kant is asked: the options of Kubernetes change nothing on this machine."""
    assert sentence in kant("submit", *options, "--", "true").refusal()
