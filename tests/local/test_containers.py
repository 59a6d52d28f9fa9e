"""Runs in container images: by the real Podman where it can make containers, and elsewhere by programs of the names of
the runtimes, which write down with what they are called and then run the command outside of any container."""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from time import monotonic

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.local.up import Up, eventually

from kant.local.containers import INITS, check_image, container, step_container
from kant.local.runs import MARK, Spec
from kant.model.errors import InputError
from kant.model.submission import Terminal
from kant.service.client import RefusedError

FAKE = """#!/bin/sh
[ "$1" != ps ] || exit 0
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


ENV = {"A": "1", "PATH": "/bin", "HOME": "/root", "not a name": "x", "CUDA_VISIBLE_DEVICES": "2,3", MARK: "/runs/1/1"}


USER = "--userns=keep-id" if os.geteuid() else "--user=0:0"
INIT = " --init" if any(Path(each).exists() for each in INITS) else ""
APPTAINER = "exec --nv --bind /srv/it:/srv/it --bind /data:/mnt:ro --pwd /srv/it"


@pytest.mark.parametrize(
    ("found", "image", "line"),
    [
        ("/x/apptainer", "debian", f"{APPTAINER} docker://debian"),
        ("/x/apptainer", "/images/a.sif", f"{APPTAINER} /images/a.sif"),
        ("/x/apptainer", "oci-archive:/images/a.tar", f"{APPTAINER} oci-archive:/images/a.tar"),
        (
            "/x/podman", "debian",
            f"run --rm --network=host --ipc=host {USER} --cgroups=disabled --label kant.run=/runs/1/1{INIT}"
            " --interactive --tty"
            " --device nvidia.com/gpu=all --volume /srv/it:/srv/it --volume /data:/mnt:ro --workdir /srv/it"
            " --env A --env CUDA_VISIBLE_DEVICES --env KANT_RUN debian",
        ),
        (
            "/x/enroot", "/images/a.sqsh",
            "start --rw --mount /srv/it:/srv/it:none:x-create=dir,rbind --mount /data:/mnt:none:x-create=dir,rbind,ro"
            " --env NVIDIA_VISIBLE_DEVICES=all --env NVIDIA_DRIVER_CAPABILITIES=all"
            " --env A --env CUDA_VISIBLE_DEVICES --env KANT_RUN /images/a.sqsh"
            """ sh -c 'cd "$0" && exec "$@"' /srv/it""",
        ),
    ],
)  # fmt: skip
def test_what_each_runtime_is_told(found: str, image: str, line: str) -> None:
    one = spec(ENV, Terminal())
    made = container(image, ("/data:/mnt:ro",), found, one, gpus=True)
    assert made.around(one.command, one.env) == [found, *shlex.split(line), "run", "me"]
    plain = container(image, (), found, spec(ENV), gpus=False).around(("x",), ENV)
    of_gpus = {"--nv", "--device", "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all"}
    assert not {"--tty", *of_gpus} & set(plain)


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
        ("", "debian", (), "image: expected Apptainer, Podman or enroot in the PATH of Kant on here, got 'debian'"),
        ("/x/podman", "/a.sif", (), "image: expected the name of an image such as docker.io/library/debian"),
        ("/x/enroot", "docker://debian", (), "image: expected the output of `enroot import`"),
        ("/x/enroot", "debian:12", (), "image: expected the output of `enroot import`"),
        ("/x/enroot", "nvidia/cuda", (), "image: expected the output of `enroot import`"),
        ("/x/apptainer", "--nv", (), "image: expected the name of an image or a file"),
        ("/x/apptainer", "a b", (), "image: expected the name of an image or a file"),
        ("/x/apptainer", "a", ("data",), "mounts: expected a folder such as /data"),
        ("/x/apptainer", "a", ("/a:/b:rx",), "mounts: expected a folder such as /data"),
    ],
)
def test_what_a_runtime_cannot_take_is_refused_by_name(
    found: str, image: str, mounts: tuple[str, ...], said: str
) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        check_image(image, mounts, "/srv/it", found, "here")


@pytest.mark.parametrize(("name", "chars"), [("apptainer", ":,^"), ("podman", ":"), ("enroot", ": ")])
def test_a_working_folder_is_refused_where_the_runtime_would_split_it(
    name: str, chars: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    images = ("./images:all/a", "images/all:a.sqsh") if name == "enroot" else ("oci-archive:/images/a.tar",)
    for image, char in itertools.product(images, ":,^ ="):
        try:
            step_container(image, (), f"/srv/a{char}b", {})
            assert char not in chars
        except OSError as error:
            assert char in chars and "workdir: expected a path without ':'" in str(error)


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
        run = f"kant.run={kant.home}/runs/{job}/1"
        assert call[: call.index("--env")] == [
            "run", "--rm", "--network=host", "--ipc=host", USER, "--cgroups=disabled", "--label", run, *INIT.split(),
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
        with pytest.raises(RefusedError, match="workdir: expected a path without ':', which podman cannot bind"):
            kant.submit("true", image="IMG", workdir="/srv/a:b")
        (bin / "podman").unlink()
        with pytest.raises(
            RefusedError, match="image: expected Apptainer, Podman or enroot in the PATH of Kant on this"
        ):
            kant.submit("true", image="IMG")
        with pytest.raises(RefusedError, match="mounts: expected none without an image"):
            kant.submit("true", mounts=["/data"])


def private_mounts() -> None:
    """Give this process mounts of its own: without version 2 of cgroups beside version 1, and with a GPU for CDI."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.unshare(0x20000) == 0 and libc.mount(None, b"/", None, 0x44000, None) == 0, "CLONE_NEWNS, private"
    libc.umount(b"/sys/fs/cgroup/unified")
    Path("/run/cdi").mkdir(exist_ok=True)
    assert libc.mount(b"none", b"/run/cdi", b"tmpfs", 0, None) == 0
    device = {"path": "/dev/nvidia0", "hostPath": "/dev/null", "type": "c", "major": 1, "minor": 3}
    gpus = [{"name": "all", "containerEdits": {"deviceNodes": [device]}}]
    Path("/run/cdi/it.json").write_text(json.dumps({"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": gpus}))


@pytest.fixture
def podman(tmp_path: Path) -> dict[str, str]:
    """The environment in which the real Podman has an image `busybox` in a storage of its own."""
    busybox, root = shutil.which("busybox"), tmp_path / "image"
    if shutil.which("podman") is None or busybox is None or os.geteuid():
        pytest.skip("Podman, busybox or root is not here")
    (root / "bin").mkdir(parents=True)
    shutil.copy(busybox, root / "bin")
    for name in ("sh", "echo", "id", "ls", "sleep", "touch"):
        (root / "bin" / name).symlink_to("busybox")
    places = f'graphroot = "{tmp_path}/graph"\nrunroot = "{tmp_path}/running"\n'
    (tmp_path / "storage.conf").write_text(f'[storage]\ndriver = "vfs"\n{places}')
    limits = 'default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]'  # as low as any machine of the tests allows
    (tmp_path / "containers.conf").write_text(f"[containers]\n{limits}\n")
    env = {"CONTAINERS_CONF": f"{tmp_path}/containers.conf", "CONTAINERS_STORAGE_CONF": f"{tmp_path}/storage.conf"}
    env |= {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    made = f"tar -C {root} -c . | podman import --quiet - localhost/busybox && podman run --detach --cgroups=disabled"
    made += " --network=host --ipc=host localhost/busybox echo && podman rm --force --all"
    line = ["sh", "-c", made]
    tried = subprocess.run(line, env=env, capture_output=True, text=True, preexec_fn=private_mounts, check=False)
    if tried.returncode:
        pytest.skip(f"Podman makes no containers here: {tried.stderr.strip()[-200:]}")
    return env


def test_the_real_podman_runs_it_and_leaves_nothing(tmp_path: Path, podman: dict[str, str]) -> None:
    with Up(tmp_path / "home", "2x4", prepare=private_mounts) as kant:
        wish, began = {"image": "localhost/busybox", "env": podman}, monotonic()
        code = kant.submit("id -u; echo no >&2; touch mine; ls /dev/nvidia0; exit 7", **wish)
        gpus = kant.submit("ls /dev/nvidia0; echo $CUDA_VISIBLE_DEVICES $KANT_JOB_ID", gpus=2, **wish)
        deaf = kant.submit("trap '' TERM; echo here; while :; do sleep 0.1; done", time_s=600, grace_s=0.1, **wish)
        tasks = kant.submit(
            "srun sh -c 'echo $RANK of $WORLD_SIZE on $SLURM_NODEID; ls /bin/busybox'",
            gpus=4,
            nodes=2,
            tasks=4,
            slurm=True,
            **wish,
        )
        assert eventually(lambda: kant.log(deaf) == "here\n")
        kant.client.post(kant.client.job(deaf, "update"), {"time_s": int(monotonic() - began) + 2})
        assert kant.over(code, gpus, deaf, tasks) == ["failed", "finished", "failed", "finished"], [
            kant.log(job) for job in (code, gpus, deaf, tasks)
        ]
        assert kant.job(code)["job"]["code"] == 7 and (kant.home / "mine").stat().st_uid == os.getuid()
        assert sorted(kant.log(code).splitlines()) == ["0", "ls: /dev/nvidia0: No such file or directory", "no"]
        assert kant.log(gpus) == f"/dev/nvidia0\n0,1 {gpus}\n"
        assert "time limit" in kant.job(deaf)["job"]["reason"] and kant.log(deaf) == "here\n"
        ranks = [line for line in sorted(kant.log(tasks).splitlines()) if line != "/bin/busybox"]
        assert ranks == [f"{rank} of 4 on {rank // 2}" for rank in range(4)] and "/bin/busybox" in kant.log(tasks)
    listed = subprocess.run(
        ["podman", "ps", "--all", "--quiet"], env=podman, capture_output=True, text=True, check=True
    )
    assert listed.stdout == "", "no container is left in its storage, also of one that was killed"
