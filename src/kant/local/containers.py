"""Runs in a container image: the command line of the machine's container runtime, wrapped around that of the job.

The runtimes are Apptainer, Podman and enroot, in this order. Each gives a container the same: the folder of the job
and its `mounts`, at their own paths; the working directory; the user who runs it; the network of the machine; the
environment of the job except PATH and HOME, which are the image's (with Apptainer HOME is the user's). A job with GPUs
gets all devices of the driver, and sees its own by CUDA_VISIBLE_DEVICES, as outside of a container.

Sources of the options: https://apptainer.org/docs/user/1.3/cli/apptainer_exec.html,
https://docs.podman.io/en/v5.2/markdown/podman-run.1.html, https://github.com/NVIDIA/enroot/blob/v3.5.0/doc/cmd/start.md
and conf/hooks/98-nvidia.sh there; how Apptainer splits a bind is in its pkg/runtime/engine/apptainer/config/bind.go.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from kant.local.runs import MARK, Spec
from kant.model.errors import InputError

RUNTIMES = ("apptainer", "podman", "enroot")
OF_IMAGE = frozenset({"PATH", "HOME"})
CONTAINER = "KANT_CONTAINER"
"""The variable from which `srun` reads the container of its tasks."""
INITS = ("/usr/libexec/podman/catatonit", "/usr/lib/podman/catatonit", "/usr/bin/catatonit")
"""Paths where Podman finds the program for its option --init. Without that program the command is process 1 of its
container, and signals that the command does not handle have no effect.
"""
NOT_BOUND = {"apptainer": ":,^", "podman": ":", "enroot": ": "}
"""The characters at which a runtime splits the paths of a mount; they cannot be escaped in both paths."""
NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*")


def runtime() -> str:
    """Return the path of this machine's container runtime; "" if there is none."""
    return next(filter(None, map(shutil.which, RUNTIMES)), "")


def check_image(image: str, mounts: tuple[str, ...], folder: str, found: str, where: str) -> None:
    """Raise InputError if a machine has no runtime, or if its runtime cannot use the image or bind the folder."""
    if not found:
        raise InputError("image", f"Apptainer, Podman or enroot in the PATH of Kant on {where}", image)
    name, is_file = Path(found).name, image.startswith(("/", "./", "../"))
    if name == "podman" and (is_file or image.endswith((".sif", ".sqsh"))):
        raise InputError(
            "image", f"the name of an image such as docker.io/library/debian, since {where} uses Podman", image
        )
    if name == "enroot" and not is_file and not image.endswith(".sqsh") and re.search("[:/]", image):
        raise InputError("image", f"the output of `enroot import` or `enroot create`, since {where} uses enroot", image)
    if image.startswith("-") or any(ch.isspace() or not ch.isprintable() for ch in image):
        raise InputError("image", "the name of an image or a file, without spaces", image)
    if set(NOT_BOUND[name]) & set(folder):
        chars = " ".join(map(repr, NOT_BOUND[name]))
        raise InputError("workdir", f"a path without {chars}, which {name} cannot bind", folder)
    for mount in mounts:
        if not re.fullmatch(r"/[^:,\s]*(:/[^:,\s]*(:r[ow])?)?", mount):
            raise InputError("mounts", "a folder such as /data, /data:/mnt or /data:/mnt:ro", mount)


class Container(Struct, frozen=True):
    """A command line that wraps a job's command: `before`, the names of the environment variables, each after `option`
    (without an `option` the environment is inherited), `after`, and the command. `cleanup` removes what a killed
    runtime leaves behind.
    """

    before: tuple[str, ...]
    after: tuple[str, ...]
    option: str = ""
    cleanup: tuple[str, ...] = ()

    @staticmethod
    def read(text: str) -> Container:
        """Return the container described by a text in the environment of a job (CONTAINER)."""
        return msgspec.json.decode(text, type=Container)

    def around(self, command: Sequence[str], env: Iterable[str]) -> list[str]:
        """Return the command line that runs `command` in the container, with the variables named in `env`."""
        names = sorted(name for name in env if NAME.fullmatch(name) and name not in OF_IMAGE)
        return [*self.before, *(_each(self.option, names) if self.option else ()), *self.after, *command]


def container(image: str, mounts: tuple[str, ...], found: str, spec: Spec, gpus: bool) -> Container:
    """Return the container of a run with the runtime at the path `found`."""
    folder = spec.workdir
    binds = [f"{folder}:{folder}", *(each if ":" in each else f"{each}:{each}" for each in mounts)]
    match Path(found).name:
        case "apptainer":
            words = ["exec", *(["--nv"] if gpus else []), *_each("--bind", binds), "--pwd", folder]
            is_plain = ":/" not in image and not image.startswith(("/", "./", "../")) and not image.endswith(".sif")
            return Container((found, *words), (f"docker://{image}" if is_plain else image,))
        case "podman":  # in the cgroup of the run, which limits its memory
            uid = spec.account.uid if spec.account is not None else os.geteuid()
            user = "--userns=keep-id" if uid else "--user=0:0"  # root cannot use keep-id
            words = ["run", "--rm", "--network=host", "--ipc=host", user, "--cgroups=disabled"]
            label = f"label=kant.run={spec.env.get(MARK, '')}"
            words += ["--label", label.removeprefix("label="), *(["--init"] if any(map(os.path.exists, INITS)) else [])]
            words += ["--interactive"] if spec.terminal is not None else []
            words += ["--tty"] if spec.terminal is not None and spec.terminal.pty else []
            words += ["--device", "nvidia.com/gpu=all"] if gpus else []
            line = '"$0" ps --all --quiet --filter "$1" | xargs -r "$0" rm --force'
            before = (found, *words, *_each("--volume", binds), "--workdir", folder)
            return Container(before, (image,), "--env", ("sh", "-c", line, found, label))
        case _:
            words = ["start", "--rw", *_each("--mount", [_mount(bind) for bind in binds])]
            words += ["--env", f"NVIDIA_VISIBLE_DEVICES={'all' if gpus else 'void'}"]
            # without this variable there is no CUDA in images that do not set it
            words += ["--env", "NVIDIA_DRIVER_CAPABILITIES=all"] if gpus else []
            inside = ("sh", "-c", 'cd "$0" && exec "$@"', folder)  # enroot has no option for the folder
            return Container((found, *words), (image, *inside), "--env")


def contained(spec: Spec, image: str, mounts: tuple[str, ...], gpus: bool, tasks_only: bool) -> Spec:
    """Return the spec of a run in its image, with this machine's runtime; with `tasks_only`, only tasks of `srun` run
    in the image.

    Raises OSError if this machine has no container runtime any more.
    """
    if not image:
        return spec
    found = runtime()
    if not found:
        raise OSError(0, "neither Apptainer, Podman nor enroot is in the PATH of Kant")
    made = container(image, mounts, found, spec, gpus)
    if tasks_only:
        env = spec.env | {CONTAINER: msgspec.json.encode(made).decode()}
        return msgspec.structs.replace(spec, env=env, cleanup=made.cleanup)
    command = tuple(made.around(spec.command, spec.env))
    return msgspec.structs.replace(spec, command=command, cleanup=made.cleanup)


def step_container(image: str, mounts: tuple[str, ...], folder: str, env: Mapping[str, str]) -> Container:
    """Return the container for a task of `srun --container-image`. Raises OSError if this machine cannot run it."""
    found = runtime()
    try:
        check_image(image, mounts, folder, found, "this machine")
    except InputError as error:
        raise OSError(0, str(error)) from None
    spec = Spec(("",), dict(env), folder, 0, 0, 0.0, None, 0.0)
    return container(image, mounts, found, spec, bool(env.get("CUDA_VISIBLE_DEVICES")))


def _mount(bind: str) -> str:
    """Return a bind in the form of enroot: a line of fstab, followed by its options."""
    source, target, *mode = bind.split(":")
    return ":".join([source, target, "none", ",".join(["x-create=dir", "rbind", *mode])])


def _each(option: str, values: list[str]) -> list[str]:
    return [word for value in values for word in (option, value)]
