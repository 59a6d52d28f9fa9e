"""Scripts with directives, scripts in a pipe, and the completion of shells."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.command import kant as verb

from kant.cli import scripts
from kant.cli.sbatch import dependencies_of, time_of
from kant.cli.scripts import expanded
from kant.cli.verbs import app_of
from kant.model.errors import InputError
from kant.model.units import parse_duration, parse_limit


def script(folder: Path, *lines: str, mode: int = 0o644) -> Path:
    """A script of these lines."""
    path = folder / "job.sh"
    path.write_text("\n".join(lines) + "\n")
    path.chmod(mode)
    return path


def test_dependencies_in_the_words_of_slurm() -> None:
    assert dependencies_of("none", "at") == {}
    found = dependencies_of("after:12+30:13,afterok:4_1,singleton", "at")
    assert found == {"after_started": ["12+1800", "13"], "after_ok": ["4_1"], "singleton": True}
    assert dependencies_of("afterany:1?aftercorr:2", "at") == {"after_one": True, "after": ["1"], "after_each": ["2"]}


def test_directives_are_options_and_the_command_line_goes_before_them(tmp_path: Path) -> None:
    path = script(
        tmp_path, "#!/bin/sh", "#KANT --gpus 2 --time 2h  # at most", "#KANT --name='my job' --env A=1 --hold", "",
        "echo here", "#KANT --gpus 8",
    )  # fmt: skip
    said = ["--gpus", "2", "--time", "2h", "--name", "my job", "--env", "A=1", "--hold"]
    runs = ["--", "/bin/sh", str(path)]
    assert expanded(["submit", str(path)]) == ["submit", *said, *runs]
    found = expanded(["submit", "--gpus=1", "--env", "B=2", str(path), "x", "--y"])
    assert found == ["submit", *said[2:], "--gpus=1", "--env", "B=2", *runs, "x", "--y"]
    path.chmod(0o755)
    assert expanded(["submit", "--", str(path)]) == ["submit", *said, "--", str(path)]


def test_of_lines_that_say_the_same_the_last_counts(tmp_path: Path) -> None:
    lines = ("#SBATCH --time=1 --nice=5", "#SBATCH --priority=3", "#KANT --time 9m --env A=1", "#KANT --env B=2")
    path = script(tmp_path, "#!/bin/sh", *lines, "true")
    said = ["--priority", "3", "--time", "9m", "--env", "A=1", "--env", "B=2", "--name", "job.sh", "--slurm"]
    assert expanded(["submit", str(path)]) == ["submit", *said, "--", "/bin/sh", str(path)]


@pytest.mark.parametrize(
    ("line", "option"),
    [
        ("--job-name=x", ["--name", "x"]),
        ("-J x", ["--name", "x"]),
        ("-p gpu", ["--queue", "gpu"]),
        ("--time=90", ["--time", "5400s"]),
        ("-t 2:30", ["--time", "150s"]),
        ("-t 1:00:05", ["--time", "3605s"]),
        ("-t 2-12", ["--time", "216000s"]),
        ("-t 1-01:30", ["--time", "91800s"]),
        ("--gres=gpu:h100:4", ["--gpus", "4"]),
        ("--gres=gpu", ["--gpus", "1"]),
        ("-G 8", ["--gpus", "8"]),
        ("--mem=16G", ["--memory", "16384MiB"]),
        ("--mem 1500", ["--memory", "1500MiB"]),
        ("-c 4", ["--cpus", "4"]),
        ("--array=0-99%8", ["--array", "0-99%8"]),
        ("-d afterok:1:2,afterany:3", ["--after-ok", "1", "--after-ok", "2", "--after", "3"]),
        ("--dependency=afternotok:7", ["--after-not-ok", "7"]),
        ("-N 1 --ntasks=1 -H", ["--hold"]),
        ("-o out.%j -e err", ["--output", "out.%j", "--error", "err"]),
        ("-c4 -n1 -Jx", ["--cpus", "4", "--name", "x"]),
        ("-t60", ["--time", "3600s"]),
        ("-N 1", []),
        (
            "--nodes=2 --ntasks-per-node=4 --gpus-per-node=4 --cpus-per-task=2",
            ["--gpus", "8", "--cpus", "8", "--nodes", "2", "--tasks", "8"],
        ),
        (
            "--ntasks=4 --gpus-per-task=1 --mem-per-gpu=8G",
            ["--gpus", "4", "--memory", "32768MiB", "--tasks", "4", "--task-gpus", "1"],
        ),
        (
            "-n 8 --ntasks-per-node=4 --mem-per-cpu=2G -c 2",
            ["--cpus", "8", "--memory", "16384MiB", "--nodes", "2", "--tasks", "8"],
        ),
        ("-n 16", ["--cpus", "16", "--tasks", "16"]),
        ("-N 2-4 --gres=gpu:a100:2", ["--gpus", "4", "--nodes", "2"]),
        ("--gres=gpu:2 --cpus-per-gpu=6", ["--gpus", "2", "--cpus", "12"]),
        ("--exclusive", ["--exclusive"]),
        ("--exclusive=user --mem=0", ["--exclusive"]),
        ("--signal=B:USR1@300", ["--warn", "300s"]),
        ("--signal=SIGTERM", ["--warn", "60s", "--warn-signal", "TERM"]),
        ("--signal=12@90", ["--warn", "90s", "--warn-signal", "USR2"]),
        ("--requeue --open-mode=truncate --no-kill", []),
        ("--no-requeue", ["--no-preemptible"]),
        (
            "--reservation=course -A lab -q high --comment='a b'",
            ["--reservation", "course", "--account", "lab", "--qos", "high", "--comment", "a b"],
        ),
        ("--begin=now+1hour", ["--begin", "1h"]),
        ("--begin=now+90", ["--begin", "90s"]),
        ("--begin=now+2weeks", ["--begin", "14d"]),
        ("-b 16:00", ["--begin", "16:00"]),
        ("-b 4pm", ["--begin", "16:00"]),
        ("-b noon", ["--begin", "12:00"]),
        ("-b 01/31/30", ["--begin", "2030-01-31T00:00"]),
        ("-b 2030-01-20T12:34:00", ["--begin", "2030-01-20T12:34:00"]),
        ("-b tomorrow", ["--begin", "1d"]),
        ("--time=UNLIMITED", []),
        ("-t 0", []),
        ("--export=ALL", []),
        ("--export=ALL,A=1", ["--env", "A=1"]),
        ("--export=NONE", ["--export", "none"]),
        ("--export=HOME,B=2", ["--export", "HOME", "--env", "B=2"]),
        ("--dependency=after:12+30", ["--after-started", "12+30m"]),
        ("--dependency=after:12:13", ["--after-started", "12", "--after-started", "13"]),
        ("--dependency=aftercorr:7", ["--after-each", "7"]),
        ("--dependency=afterok:1?afterany:2", ["--after-one", "--after-ok", "1", "--after", "2"]),
        ("--dependency=afterburstbuffer:5", ["--after", "5"]),
        ("--nice=50", ["--priority", "-50"]),
        ("--nice", ["--priority", "-100"]),
        ("--dependency=afterok:3,singleton", ["--after-ok", "3", "--singleton"]),
    ],
)
def test_what_slurm_says_is_understood(tmp_path: Path, line: str, option: list[str]) -> None:
    path = script(tmp_path, "#!/bin/bash", f"#SBATCH {line}", "true")
    name = [] if "--name" in option else ["--name", "job.sh"]
    assert expanded(["submit", str(path)]) == ["submit", *option, *name, "--slurm", "--", "/bin/bash", str(path)]


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("#SBATCH --container=x", "--container"),
        ("#SBATCH --nodes=four", "four"),
        ("#SBATCH --nodes=2 --gpus=3", "as many GPUs on each of 2 nodes"),
        ("#SBATCH --signal=B:KILL@5", "KILL@5"),
        ("#SBATCH --begin=soon", "now+1hour"),
        ("#SBATCH --time=soon", "soon"),
        ("#SBATCH --gres=tpu:1", "tpu:1"),
        ("#SBATCH --dependency=afterlife:1", "afterlife:1"),
        ("#SBATCH --dependency=afterok:1?afterok:2,afterok:3", "separated either by"),
        ("#SBATCH --job-name", "a value after --job-name"),
        ("#KANT --colour red", "--colour"),
        ("#KANT --command x", "--command"),
        ("#KANT stray", "stray"),
        ("#KANT --name 'open", "No closing quotation"),
    ],
)
def test_what_is_not_understood_is_refused_by_name_and_line(tmp_path: Path, line: str, named: str) -> None:
    path = script(tmp_path, "#!/bin/sh", "", line, "true")
    said = verb("submit", path).refusal()
    assert f"{path}, line 3: expected" in said and named in said


COMMON = """\
--account=lab --array=0-3 --begin=now+1hour --chdir=/tmp --comment=x --constraint=a100 --cpus-per-task=4
--cpus-per-gpu=4 --dependency=afterok:1 --error=e --exclude=n1 --exclusive --export=ALL --gpus=4 --gpus-per-node=4
--gpus-per-task=1 --gres=gpu:2 --hold --input=in --job-name=x --licenses=a --mail-type=END --mail-user=me --mem=16G
--mem-per-cpu=2G --mem-per-gpu=8G --nice=5 --nodelist=n1 --nodes=2 --ntasks=4 --ntasks-per-node=2 --open-mode=append
--output=o --partition=gpu --qos=high --requeue --reservation=r --signal=B:USR1@300 --time=UNLIMITED --wait"""
"""Forty options as the scripts of public clusters have them."""


def test_of_forty_common_options_at_most_five_are_refused(tmp_path: Path) -> None:
    refused = []
    for option in COMMON.split():
        try:
            expanded(["submit", str(script(tmp_path, "#!/bin/bash", f"#SBATCH {option}", "true"))])
        except InputError:
            refused.append(option)
    assert len(COMMON.split()) == 40 and refused == ["--input=in", "--licenses=a"]


def test_all_faults_of_a_script_are_said_at_once(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        "#!/bin/sh",
        "#SBATCH --time=soon --nodes=two",
        "#SBATCH --gres=gpu:1 --container=box",
        "#KANT --colour red",
    )
    said = verb("submit", path).refusal()
    assert said.count("expected") == 4 and said.count(str(path)) == 1
    places = [said.index(word) for word in ("'soon'", "'two'", "'--container'", "'--colour'")]
    assert places == sorted(places) and [said.count(f"line {n}: ") for n in (2, 3, 4)] == [2, 1, 1]


def test_what_has_no_meaning_here_is_left_out_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = script(tmp_path, "#!/bin/sh", "#SBATCH --constraint=h100 --mail-type=END", "#SBATCH -w n1 --cpu-bind=none")
    assert expanded(["submit", str(path)]) == ["submit", "--name", "job.sh", "--slurm", "--", "/bin/sh", str(path)]
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert all(word in said for word in ("--constraint=h100", "--mail-type=END", "--nodelist=n1", "--cpu-bind=none"))


@pytest.mark.parametrize(
    ("line", "option"),
    [
        ("-o out.log -e err.log", ["--output", "out.log", "--error", "err.log"]),
        ("-oout.log", ["--output", "out.log"]),
        ("-o=out.log --hold", ["--output", "out.log", "--hold"]),
        ("--priority -5", ["--priority", "-5"]),
        (
            "--after-any 3 --namespace=ml --no-preemptible",
            ["--after-any", "3", "--namespace", "ml", "--no-preemptible"],
        ),
    ],
)
def test_a_line_of_kant_takes_what_kant_submit_takes(tmp_path: Path, line: str, option: list[str]) -> None:
    path = script(tmp_path, "#!/bin/sh", f"#KANT {line}", "true")
    assert expanded(["submit", str(path)]) == ["submit", *option, "--", "/bin/sh", str(path)]


LIMITS = [
    (["submit", "--time", "60", "--", "true"], "--time", "60"),
    (["submit", "--time=1h30", "--", "true"], "--time", "30"),
    (["submit", "--time", "1.5", "true"], "--time", "1.5"),
    (["submit", "--warn", "5", "--", "true"], "--warn", "5"),
    (["submit", "--grace", " 30 ", "--", "true"], "--grace", "30"),
    (["run", "--time", "60", "--", "true"], "--time", "60"),
    (["update", "1", "--time", "90"], "--time", "90"),
    (["reserve", "r", "--gpus", "1", "--time", "2"], "--time", "2"),
]


@pytest.mark.parametrize(("words", "option", "number"), LIMITS)
def test_a_limit_without_a_unit_is_refused_with_the_two_that_it_may_mean(
    words: list[str], option: str, number: str
) -> None:
    said = verb(*words).refusal()
    assert f"kant: {option}: expected a unit after {number}, such as {number}s for seconds or {number}m" in said


def test_lines_of_scripts_of_files_and_of_workflows_are_held_to_units_too(tmp_path: Path) -> None:
    path = script(tmp_path, "#!/bin/sh", "#KANT --time 60", "true")
    assert "--time: expected a unit after 60" in verb("submit", path).refusal()
    (tmp_path / "lines").write_text("--time 60 -- true\n")
    assert (
        f"{tmp_path}/lines, line 1, --time: expected a unit" in verb("submit", "--from", tmp_path / "lines").refusal()
    )
    (tmp_path / "flow.toml").write_text('[[stage]]\nid = "a"\nrun = "true"\ntime = "60"\n')
    assert "expected a unit after 60" in verb("submit", "--graph", tmp_path / "flow.toml").refusal()


@given(
    st.lists(st.tuples(st.integers(0, 99), st.sampled_from(["us", "ms", "s", "m", "h", "d", "w"])), min_size=1),
    st.sampled_from(["", " "]),
    st.integers(0, 99),
)
def test_a_limit_with_units_is_as_long_as_a_duration(parts: list[tuple[int, str]], gap: str, bare: int) -> None:
    text = gap.join(f"{number}{unit}" for number, unit in parts)
    assert parse_limit(text, "--time") == parse_duration(text)
    if parse_duration(f"{text} {bare}"):
        with pytest.raises(InputError, match=f"expected a unit after {bare}, such as"):
            parse_limit(f"{text} {bare}", "--time")


def test_the_lists_of_options_are_those_of_kant_submit() -> None:
    takes = app_of("submit")["submit"].assemble_argument_collection()
    shorts, flags, many = dict[str, str](), set[str](), set[str]()
    for each in takes:
        names = [name for name in each.names if name.startswith("--")]
        shorts |= {name: names[0] for name in each.names if re.fullmatch("-[a-z]", name)}
        flags |= set(names) if each.hint is bool else set()
        many |= set(names) if "tuple" in str(each.hint) else set()
    assert (shorts, flags, many) == (scripts.OWN_SHORT, scripts.FLAGS, scripts.REPEATED)


def test_a_short_option_of_the_command_line_goes_before_that_of_the_script(tmp_path: Path) -> None:
    path = script(tmp_path, "#!/bin/sh", "#KANT -o theirs --gpus 1", "true")
    for said in (["-o", "mine"], ["-omine"], ["--output=mine"]):
        assert expanded(["submit", *said, str(path)]) == ["submit", "--gpus", "1", *said, "--", "/bin/sh", str(path)]


def test_a_script_that_reads_what_is_not_set_is_told_so_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [
        "#SBATCH -n 1", "# $SLURM_IN_A_COMMENT", "export SLURM_CPU_BIND=none", "echo $SLURM_CPU_BIND ${SLURM_JOB_ID}",
        'cd "$SLURM_SUBMIT_DIR"; echo ${SLURM_JOB_LICENSES:-none} ${#SLURM_JOB_DERIVED} # $SLURM_NOT_READ',
        "python -c 'import os; os.environ[\"SLURM_TOPOLOGY_ADDR\"]'", "echo $NOT_SLURM_HERE $SLURM_JOB_LICENSES",
    ]  # fmt: skip
    path = script(tmp_path, "#!/bin/bash", *lines)
    expanded(["submit", str(path)])
    said = capsys.readouterr().err
    assert said.startswith(f"kant: {path} reads SLURM_JOB_DERIVED, SLURM_JOB_LICENSES, SLURM_TOPOLOGY_ADDR, which Kant")
    assert said.count("\n") == 1
    expanded(["submit", str(script(tmp_path, "#!/bin/bash", "#KANT --gpus 1", "echo $SLURM_JOB_LICENSES"))])
    assert capsys.readouterr().err == ""


@given(seconds=st.integers(0, 10**7))
def test_a_time_of_slurm_is_as_long_as_slurm_takes_it(seconds: int) -> None:
    days, rest = divmod(seconds, 86400)
    clock = f"{rest // 3600}:{rest // 60 % 60:02}:{rest % 60:02}"
    for text in (f"{days}-{clock}", f"{seconds // 3600}:{seconds // 60 % 60}:{seconds % 60}"):
        assert time_of(text, "") == ([["--time", f"{seconds}s"]] if text != "0" else [])


def test_other_commands_are_left_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    (tmp_path / "data").write_text("no script")
    (tmp_path / "sh").write_text("#!/bin/sh\n")
    for words in (
        ["submit", "--gpus", "1", "--", "python", "train.py"], ["submit", "data"],
        ["submit", "--hold", "sh", "-c", "x"], ["submit", "--gpus", "1"], ["submit"], ["submit", "--"],
    ):  # fmt: skip
        assert expanded(words) == words
    (tmp_path / "job.sh").write_text("#!/usr/bin/env bash\ntrue\n")
    assert expanded(["submit", "job.sh", "1"]) == [
        "submit",
        "--",
        "/usr/bin/env",
        "bash",
        str(tmp_path / "job.sh"),
        "1",
    ]


def test_a_script_in_a_pipe_runs_under_its_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    def piped(text: str) -> None:
        monkeypatch.setattr(scripts, "_piped", lambda: text)

    text = "#!/usr/bin/env bash\n#KANT --gpus 1 --hold\necho $1\n"
    piped(text)
    assert expanded(["submit", "--gpus", "2"]) == ["submit", "--hold", "--gpus", "2", "--", "bash", "-c", text]
    piped("echo here\n")
    assert expanded(["submit", "--wait"]) == ["submit", "--wait", "--", "sh", "-c", "echo here\n"]
    piped("#!/usr/bin/python3\nprint()\n")
    with pytest.raises(InputError, match="standard input: expected a shell script"):
        expanded(["submit"])


@pytest.mark.long
def test_a_shell_completes_verbs_and_options(tmp_path: Path) -> None:
    for shell in ("bash", "zsh", "fish"):
        text = verb("completion", shell).out
        assert (re.search(r"\bhistory\b", text) and "--after-not-ok" in text) or "after-not-ok" in text
        (tmp_path / shell).write_text(text)
        if shutil.which(shell) is not None:
            subprocess.run([shell, "-n", str(tmp_path / shell)], check=True)
        if shell == "zsh":  # an `eval` has to say for whom it completes
            assert text.rstrip().endswith("  compdef _cyclopts_kant kant\nfi")
    ask = 'source "$1"; COMP_WORDS=(kant hist); COMP_CWORD=1; _kant; echo "${COMPREPLY[@]}"'
    done = subprocess.run(
        ["bash", "-c", ask, "-", str(tmp_path / "bash")],
        capture_output=True,
        text=True,
        check=True,
        env=dict(os.environ),
    )
    assert done.stdout.split() == ["history"]
    assert verb("completion", "tcsh").code == 2
