"""Runs in container images. No runtime can make containers where these tests run: programs of the same names stand in
for them, which write down with what they are called and then run the command outside of any container."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.local.up import Up

from kant.local.containers import check_image, container
from kant.local.runs import Spec
from kant.model.errors import InputError
from kant.model.submission import Terminal
from kant.service.client import RefusedError

FAKE = """#!/bin/sh
here="$HERE"
said=$(for word in "$@"; do echo "$word"; done; echo "uid=$(id -u) gpus=$CUDA_VISIBLE_DEVICES rank=$RANK"; echo ==)
echo "$said" >> "$here/calls"
while [ "$1" != IMG ] && [ "$1" != docker://IMG ]; do shift; done
shift
exec "$@"
"""
"""A runtime that writes its arguments down, and runs what stands after the image."""


def spec(env: dict[str, str], terminal: Terminal | None = None) -> Spec:
    return Spec(("run", "me"), env, "/srv/it", 0o22, 1 << 20, 30.0, None, 0.0, terminal=terminal)


ENV = {"A": "1", "PATH": "/bin", "HOME": "/root", "not a name": "x", "CUDA_VISIBLE_DEVICES": "2,3"}


USER = "--userns=keep-id" if os.geteuid() else "--user=0:0"
APPTAINER = "exec --nv --bind /srv/it:/srv/it --bind /data:/mnt:ro --pwd /srv/it"


@pytest.mark.parametrize(
    ("found", "image", "line"),
    [
        ("/x/apptainer", "debian", f"{APPTAINER} docker://debian"),
        ("/x/apptainer", "/images/a.sif", f"{APPTAINER} /images/a.sif"),
        (
            "/x/podman", "debian",
            f"run --rm --network=host --ipc=host {USER} --cgroups=disabled --interactive --tty"
            " --device nvidia.com/gpu=all --volume /srv/it:/srv/it --volume /data:/mnt:ro --workdir /srv/it"
            " --env A --env CUDA_VISIBLE_DEVICES debian",
        ),
        (
            "/x/enroot", "/images/a.sqsh",
            "start --rw --mount /srv/it:/srv/it:none:x-create=dir,rbind --mount /data:/mnt:none:x-create=dir,rbind,ro"
            " --env NVIDIA_VISIBLE_DEVICES=all --env A --env CUDA_VISIBLE_DEVICES /images/a.sqsh"
            """ sh -c 'cd "$0" && exec "$@"' /srv/it""",
        ),
    ],
)  # fmt: skip
def test_what_each_runtime_is_told(found: str, image: str, line: str) -> None:
    one = spec(ENV, Terminal())
    made = container(image, ("/data:/mnt:ro",), found, one, gpus=True)
    assert made.around(one.command, one.env) == [found, *shlex.split(line), "run", "me"]
    plain = container(image, (), found, spec(ENV), gpus=False).around(("x",), ENV)
    assert not {"--nv", "--device", "--tty", "NVIDIA_VISIBLE_DEVICES=all"} & set(plain)


@given(st.dictionaries(st.text(min_size=1, max_size=5), st.just("")), st.lists(st.text(max_size=5), min_size=1))
def test_the_command_stands_last_and_each_name_once(env: dict[str, str], command: list[str]) -> None:
    for found in ("/x/podman", "/x/enroot", "/x/apptainer"):
        line = container("debian", (), found, spec(env), gpus=False).around(command, env)
        assert line[-len(command) :] == command
        named = [
            line[at + 1] for at, word in enumerate(line[: -len(command)]) if word == "--env" and "=" not in line[at + 1]
        ]
        wanted = {name for name in env if re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name)} - {"PATH", "HOME"}
        assert named == ([] if "apptainer" in found else sorted(wanted))


@pytest.mark.parametrize(
    ("found", "image", "mounts", "said"),
    [
        ("", "debian", (), "image: expected Apptainer, Podman or enroot on the path of Kant on here, got 'debian'"),
        ("/x/podman", "/a.sif", (), "image: expected the name of an image, as here has Podman"),
        ("/x/enroot", "docker://debian", (), "image: expected what `enroot import`"),
        ("/x/apptainer", "--nv", (), "image: expected the name of an image or a file"),
        ("/x/apptainer", "a b", (), "image: expected the name of an image or a file"),
        ("/x/apptainer", "a", ("data",), "mounts: expected folders such as /data"),
        ("/x/apptainer", "a", ("/a:/b:rx",), "mounts: expected folders such as /data"),
    ],
)
def test_what_a_runtime_cannot_take_is_refused_by_name(
    found: str, image: str, mounts: tuple[str, ...], said: str
) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        check_image(image, mounts, found, "here")


def test_a_job_runs_in_its_image_and_so_do_the_tasks_of_srun(tmp_path: Path) -> None:
    bin = tmp_path / "bin"
    bin.mkdir()
    (bin / "podman").write_text(FAKE.replace("$HERE", str(tmp_path)))
    (bin / "podman").chmod(0o755)

    def prepare() -> None:
        os.environ["PATH"] = str(bin)

    with Up(tmp_path / "home", "1x4", prepare=prepare) as kant:
        job = kant.submit(
            "echo $WORD $KANT_JOB_ID", gpus=2, image="IMG", mounts=["/data"], env={"WORD": "w", "PATH": "/bin"}
        )
        assert kant.over(job) == ["finished"], kant.job(job)
        assert kant.log(job) == f"w {job}\n"
        call = (tmp_path / "calls").read_text().splitlines()
        assert call[: call.index("--env")] == [
            "run", "--rm", "--network=host", "--ipc=host", USER, "--cgroups=disabled",
            "--device", "nvidia.com/gpu=all", "--volume", f"{kant.home}:{kant.home}", "--volume", "/data:/data",
            "--workdir", str(kant.home),
        ]  # fmt: skip
        assert call[-2:] == [f"uid={os.getuid()} gpus=0,1 rank=", "=="]
        names = {call[at + 1] for at, word in enumerate(call) if word == "--env"}
        assert {"WORD", "KANT_JOB_ID", "KANT_RUN", "CUDA_VISIBLE_DEVICES"} <= names and "PATH" not in names
        (tmp_path / "calls").write_text("")
        tasks = kant.submit("echo outside; srun sh -c 'echo $RANK'", gpus=2, tasks=2, image="IMG", slurm=True)
        assert kant.over(tasks) == ["finished"], kant.log(tasks)
        assert sorted(kant.log(tasks).split()) == ["0", "1", "outside"]
        calls = (tmp_path / "calls").read_text()
        assert calls.count("==\n") == 2 and calls.count("--env\nRANK\n") == 2
        assert {"rank=0", "rank=1"} <= set(calls.split())
        step = "PATH=$RUNTIME:$PATH srun --container-image=docker://IMG --container-mounts=/data:/mnt sh -c 'echo in'"
        alone = kant.submit(step, slurm=True, env={"PATH": os.environ["PATH"], "RUNTIME": str(bin)})
        assert kant.over(alone) == ["finished"] and kant.log(alone) == "in\n", kant.log(alone)
        assert "--volume\n/data:/mnt\n" in (tmp_path / "calls").read_text().rpartition("run\n")[2]
        (bin / "podman").unlink()
        with pytest.raises(
            RefusedError, match="image: expected Apptainer, Podman or enroot on the path of Kant on this"
        ):
            kant.submit("true", image="IMG")
        with pytest.raises(RefusedError, match="mounts: expected an image with them"):
            kant.submit("true", mounts=["/data"])
