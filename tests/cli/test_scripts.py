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
from kant.cli.scripts import expanded
from kant.model.errors import InputError


def script(folder: Path, *lines: str, mode: int = 0o644) -> Path:
    """A script of these lines."""
    path = folder / "job.sh"
    path.write_text("\n".join(lines) + "\n")
    path.chmod(mode)
    return path


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
        ("--dependency=afterok:3,singleton", ["--after-ok", "3", "--singleton"]),
    ],
)
def test_what_slurm_says_is_understood(tmp_path: Path, line: str, option: list[str]) -> None:
    path = script(tmp_path, "#!/bin/bash", f"#SBATCH {line}", "true")
    assert expanded(["submit", str(path)]) == ["submit", *option, "--", "/bin/bash", str(path)]


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("#SBATCH --exclusive", "--exclusive"),
        ("#SBATCH --nodes=4", "--nodes"),
        ("#SBATCH --time=soon", "soon"),
        ("#SBATCH --gres=tpu:1", "tpu:1"),
        ("#SBATCH --dependency=aftercorr:1", "aftercorr:1"),
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


@given(seconds=st.integers(0, 10**7))
def test_a_time_of_slurm_is_as_long_as_slurm_takes_it(seconds: int) -> None:
    days, rest = divmod(seconds, 86400)
    clock = f"{rest // 3600}:{rest // 60 % 60:02}:{rest % 60:02}"
    for text in (f"{days}-{clock}", f"{seconds // 3600}:{seconds // 60 % 60}:{seconds % 60}"):
        assert scripts._time(text, "") == ["--time", f"{seconds}s"]


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
    with pytest.raises(InputError, match="standard input: expected a script of the shell"):
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
