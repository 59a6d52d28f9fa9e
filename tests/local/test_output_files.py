"""`--output` and `--error`: where they lie, what is in them, and which patterns have no meaning here."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.command import kant as verb
from tests.local.up import Up

from kant.local.patterns import NAMES, check_pattern, filled
from kant.model.errors import InputError

VALUES = {"A": "12", "a": "3", "j": "12_3", "N": "here", "u": "ann", "x": "tr/ain"}


LETTERS = ["%%", *(f"%{name}" for name in sorted(NAMES))]


@given(st.lists(st.one_of(st.sampled_from(LETTERS), st.text("ab-_./", max_size=4))))
def test_a_pattern_is_filled_letter_by_letter(parts: list[str]) -> None:
    check_pattern("".join(parts), "output", array=True)
    own = {f"%{name}": value.replace("/", "_") for name, value in VALUES.items()} | {"%%": "%"}
    assert filled("".join(parts), VALUES) == "".join(own.get(part, part) for part in parts)


def test_widths_pad_numbers_and_what_has_no_meaning_is_refused_by_name() -> None:
    assert filled("%4a-%5j-%3A", VALUES) == "0003-12_3-012"
    for pattern, word in (("%t", "%t"), ("out%", "'%'"), ("%5%", "%5%"), ("%s.log", "%s"), ("a\0b", "zero byte")):
        with pytest.raises(InputError, match=word):
            check_pattern(pattern, "output", array=True)
    with pytest.raises(InputError, match="only in a job array"):
        check_pattern("%a", "output", array=False)


def test_output_and_error_go_to_their_files_and_all_of_it_to_the_log(kant: Up, tmp_path: Path) -> None:
    at = ("--home", kant.home, "--workdir", tmp_path)
    script = "echo out; echo err >&2; umask"
    job = verb("submit", *at, "--name", "a/b", "-o", "%x-%j.out", "-e", "%4j.err", "--", "sh", "-c", script).out.strip()
    kant.over(job)
    assert (tmp_path / f"a_b-{job}.out").read_text().splitlines()[0] == "out"
    assert (tmp_path / f"{job.zfill(4)}.err").read_text() == "err\n"
    mask = (tmp_path / f"a_b-{job}.out").read_text().split()[1]
    assert sorted(kant.log(job).split()) == sorted(["err", "out", mask])
    assert (tmp_path / f"a_b-{job}.out").stat().st_mode & 0o777 == 0o666 & ~int(mask, 8)
    both = verb("submit", *at, "--output", "both", "--retries", "1", "--", "sh", "-c", "echo out; echo err >&2; exit 1")
    kant.over(both.out.strip())
    assert (tmp_path / "both").read_text() == "out\nerr\n" * 2  # the second run goes on after the first
    array = verb("submit", *at, "--array", "0-1", "-o", "%A_%a", "--", "sh", "-c", "echo $KANT_ARRAY_INDEX").out.strip()
    kant.over(*(f"{array}_{index}" for index in (0, 1)))
    assert [(tmp_path / f"{array}_{index}").read_text() for index in (0, 1)] == ["0\n", "1\n"]


def test_a_file_that_cannot_be_is_said_and_the_job_fails(kant: Up, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, why in (("none/file", "No such file"), ("pipe", "No such device"), (".", "Is a directory")):
        job = kant.submit("echo never", output=name, workdir=str(tmp_path))
        assert kant.over(job) == ["failed"]
        assert kant.job(job)["job"]["code"] == 126
        assert why in kant.log(job) and "never" not in kant.log(job)
    full = kant.submit("seq 9; sleep 0.1; seq 9", output="/dev/full", workdir=str(tmp_path))
    assert kant.over(full) == ["finished"]
    assert "/dev/full: No space left" in kant.log(full) and kant.log(full).count("9\n") == 2
    assert "%A (array)" in verb("submit", "--home", kant.home, "-o", "%t", "--", "true").refusal()


def test_slurms_lines_are_understood(kant: Up, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\n#SBATCH -o slurm-%j.out --error=slurm-%j.err\necho out; echo err >&2\n")
    job = verb("submit", "--home", kant.home, "--workdir", tmp_path, script).out.strip()
    kant.over(job)
    assert [(tmp_path / f"slurm-{job}.{end}").read_text() for end in ("out", "err")] == ["out\n", "err\n"]
    script.write_text("#!/bin/sh\n#SBATCH --open-mode=append\ntrue\n")
    assert "--open-mode=append has no meaning" in verb("submit", "--home", kant.home, script).err
