"""Scripts that say what they ask for: `#KANT` lines are options of `kant submit`, `#SBATCH` lines those of Slurm.

The lines stand at the head of the script, before its first command. What the command line says goes before them.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Callable
from pathlib import Path

from kant.model.errors import InputError
from kant.model.job_request import OPTIONS

PIPE = "standard input"
MOST = 1 << 20  # bytes of a script that are read
REPEATED = frozenset(flag for said in OPTIONS.values() if said.option.many for flag in said.flags)
FLAGS = frozenset({flag for said in OPTIONS.values() if said.is_flag for flag in said.flags}) | {
    "--no-preemptible", "--wait", "--json", "--kube", "--no-kube"
}  # fmt: skip
OWN_SHORT = {said.flags[1]: said.flags[0] for said in OPTIONS.values() if said.flags[-1][1] != "-"} | {
    "-n": "--namespace"
}
"""The short names of options of `kant submit`."""
SHORT = {short: long for long, short in (said.option.slurm for said in OPTIONS.values() if said.option.slurm)} | {
    "-t": "--time", "-G": "--gpus", "-d": "--dependency", "-H": "--hold", "-N": "--nodes", "-n": "--ntasks",
}  # fmt: skip
"""The short names of options of sbatch."""


def expanded(arguments: list[str]) -> list[str]:
    """The arguments of `kant submit`, with what its script says in its head, and what runs the script. Raises
    InputError for a line of the script that cannot be understood."""
    at = command_at(arguments)
    if any(word.partition("=")[0] in ("--graph", "--from") for word in arguments[:at]):
        return arguments
    if at is None:
        text = _piped()
        if not text:
            return arguments
        shell = _shell_of(text)
        return ["submit", *_options(PIPE, text, arguments[1:]), *arguments[1:], "--", shell, "-c", text]
    script = Path(arguments[at])
    options, rest = [each for each in arguments[1:at] if each != "--"], arguments[at + 1 :]
    text = _text_of(script)
    said = _options(str(script), text, options)
    if not (said or text.startswith("#!")) or (not said and _found_by_name(arguments[at])):
        return arguments
    runs = [str(script.absolute())] if os.access(script, os.X_OK) else [*_interpreter(text), str(script.absolute())]
    return ["submit", *said, *options, "--", *runs, *rest]


def _found_by_name(word: str) -> bool:
    """Whether the shell finds a program of this name."""
    from shutil import which

    return "/" not in word and which(word) is not None


def command_at(arguments: list[str]) -> int | None:
    """Where the command begins; None where there is none."""
    if "--" in arguments:
        at = arguments.index("--") + 1
        return at if at < len(arguments) else None
    at = 1
    while at < len(arguments):
        word = arguments[at]
        if not word.startswith("-"):
            return at
        joined = not word.startswith("--") and len(word) > 2  # -oFILE
        at += 1 if joined or "=" in word or word in FLAGS else 2
    return None


def _piped() -> str:
    """What a pipe or a file gives as standard input; empty where that is neither."""
    try:
        kind = os.fstat(sys.stdin.fileno()).st_mode
        return sys.stdin.read(MOST) if stat.S_ISFIFO(kind) or stat.S_ISREG(kind) else ""
    except (OSError, ValueError, AttributeError, UnicodeDecodeError):
        return ""


def _text_of(script: Path) -> str:
    """The text of a script; empty where it is no file, or a program of another kind."""
    try:
        if not stat.S_ISREG(script.stat().st_mode):
            return ""
        with script.open("rb") as file:
            return file.read(MOST).decode()
    except (OSError, ValueError):
        return ""


def _interpreter(text: str) -> list[str]:
    first = text.partition("\n")[0]
    return first[2:].split(None, 1) if first.startswith("#!") else ["sh"]


def _shell_of(text: str) -> str:
    """What takes a script after -c. Raises InputError for another kind of script."""
    words = _interpreter(text)
    name = Path(words[-1].split()[0]).name if words else "sh"
    if name not in ("sh", "bash", "dash", "zsh", "ksh"):
        raise InputError(PIPE, "a script of the shell (submit another as a file)", name)
    return name


def _options(where: str, text: str, given: list[str]) -> list[str]:
    """The options in the head of a script, but for those that are given."""
    if "#KANT" not in text and "#SBATCH" not in text:
        return []
    import shlex

    said = {_long(word.partition("=")[0]) for word in given if word.startswith("-")}
    found: list[str] = []
    is_of_slurm = False
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip() and not line.startswith("#"):
            break
        kind, _, rest = line.partition(" ")
        if kind not in ("#KANT", "#SBATCH"):
            continue
        place = f"{where}, line {number}"
        is_of_slurm |= kind == "#SBATCH"
        try:
            words = shlex.split(rest, comments=True)
        except ValueError as error:
            raise InputError(place, f"options as the shell has them ({error})", rest) from None
        for name, value in _pairs(words, place):
            option = _checked(name, value, place) if kind == "#KANT" else _of_slurm(name, value, place)
            if option and (option[0] not in said or option[0] in REPEATED):
                found += option
    if is_of_slurm:
        name = Path(where).name if where != PIPE else "sbatch"  # as sbatch calls a job without a name
        found += [] if "--name" in (*said, *found) or _is_of_kubernetes(said) else ["--name", name]
        found += [] if "--slurm" in said else ["--slurm"]
        _warn(where, text)
    return found


def _long(name: str) -> str:
    """The long name of an option of `kant submit`, whose value may follow a short one at once."""
    return name if name.startswith("--") else OWN_SHORT.get(name[:2], name)


def _is_of_kubernetes(said: set[str]) -> bool:
    """Whether the job goes to Kubernetes, where a name is more than a text."""
    return bool(os.environ.get("KANT_KUBE") or said & {"--kube", "--context", "--namespace", "--kubeconfig"})


def _warn(where: str, text: str) -> None:
    """Say which of Slurm's variables a script reads that it will not have."""
    from kant.local.slurm import NAMES

    code = "\n".join(re.sub(r"(^|\s)#.*", "", line) for line in text.splitlines())
    own = set(re.findall(r"(?:^|[\s;&(])(SLURMD?_\w+)=", code))
    missing = sorted(set(re.findall(r"(?<!\w)SLURMD?_[A-Z]\w*", code)) - NAMES - own)
    if missing:
        what = f"{', '.join(missing)}, which Kant does not set (docs/up.md has those that it sets)"
        print(f"kant: {where} reads {what}", file=sys.stderr)


def _pairs(words: list[str], place: str) -> list[tuple[str, str | None]]:
    """The options of a line with their values."""
    found: list[tuple[str, str | None]] = []
    for word in words:
        waits = bool(found) and found[-1][1] is None and found[-1][0] not in FLAGS
        if word.startswith("-") and len(word) > 1 and not (waits and re.fullmatch(r"-[0-9.]+", word)):
            name, equals, value = word.partition("=")
            if not word.startswith("--") and len(name) > 2:  # -c4
                found.append((word[:2], word[2:]))
                continue
            found.append((name, value if equals else None))
        elif found and found[-1][1] is None:
            found[-1] = (found[-1][0], word)
        else:
            raise InputError(place, "options of `kant submit`, such as --gpus 2", word)
    return found


def _checked(name: str, value: str | None, place: str) -> list[str]:
    """An option of Kant. Raises InputError for one that `kant submit` does not have."""
    from kant.cli.verbs import app_of

    takes = app_of("submit")["submit"].assemble_argument_collection()
    if name not in {each for argument in takes for each in argument.names if each.startswith("-")}:
        raise InputError(place, "an option of `kant submit`", name)
    long = _long(name)
    return [long] if value is None else [long, value]


# --- Slurm ------------------------------------------------------------------------------------------------------------


def _of_slurm(name: str, value: str | None, place: str) -> list[str]:
    """What an option of sbatch is for Kant; nothing where it changes nothing. Raises InputError for another."""
    long = SHORT.get(name, name)
    if long in _SAME:
        return [_SAME[long], _needed(long, value, place)]
    if long in _SLURM:
        return _SLURM[long](_needed(long, value, place), place)
    if long == "--hold":
        return ["--hold"]
    if long in ("--nodes", "--ntasks", "--ntasks-per-node") and value == "1":
        return []
    if long == "--open-mode" and value == "truncate":
        return []
    if long in ("--mail-type", "--mail-user"):
        print(f"kant: {place}: {long} is left out (--webhook and --on-event tell of a job)", file=sys.stderr)
        return []
    raise InputError(place, "an option of sbatch that Kant knows, or a #KANT line in its place", name)


def _needed(name: str, value: str | None, place: str) -> str:
    if not value:
        raise InputError(place, f"a value after {name}")
    return value


def _time(value: str, place: str) -> list[str]:
    """Minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", value)
    if match is None:
        raise InputError(place, "a time of Slurm such as 90, 1:30:00 or 2-12", value)
    days, *rest = match.groups()
    parts = [int(each) for each in rest if each is not None]
    if days is not None:
        hours, minutes, seconds = [*parts, 0, 0][:3]
    elif len(parts) == 3:
        hours, minutes, seconds = parts
    else:
        hours, (minutes, seconds) = 0, [*parts, 0][:2]
    return ["--time", f"{((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds}s"]


def _memory(value: str, place: str) -> list[str]:
    match = re.fullmatch(r"(\d+)([KMGT]?)B?", value, re.IGNORECASE)
    if match is None:
        raise InputError(place, "an amount of memory such as 16G", value)
    size = int(match[1])
    mib = {"K": -(-size // 1024), "": size, "M": size, "G": size << 10, "T": size << 20}[match[2].upper()]
    return ["--memory", f"{mib}MiB"] if mib else []


def _gpus(value: str, place: str) -> list[str]:
    """`gpu:2`, `gpu:h100:2`, `h100:2` or 2; the model has no say."""
    words = value.split("(")[0].split(":")
    if "," in value or (not words[-1].isdigit() and words != ["gpu"]):
        raise InputError(place, "GPUs such as gpu:2", value)
    return ["--gpus", words[-1] if words[-1].isdigit() else "1"]


def _gres(value: str, place: str) -> list[str]:
    if not value.startswith("gpu"):
        raise InputError(place, "GPUs such as gpu:2", value)
    return _gpus(value, place)


def _dependency(value: str, place: str) -> list[str]:
    kinds = {"afterany": "--after", "afterok": "--after-ok", "afternotok": "--after-not-ok"}
    found: list[str] = []
    for part in value.split(","):
        kind, _, jobs = part.partition(":")
        if part == "singleton":
            found.append("--singleton")
            continue
        if kind not in kinds or not jobs:
            raise InputError(
                place, "afterany, afterok or afternotok with jobs, such as afterok:12:13, or singleton", part
            )
        for job in jobs.split(":"):
            found += [kinds[kind], job]
    return found


_SAME = {said.option.slurm[0]: said.flags[0] for said in OPTIONS.values() if said.option.slurm}
"""Options of sbatch whose value means the same to Kant."""
_SLURM: dict[str, Callable[[str, str], list[str]]] = {
    "--time": _time, "--mem": _memory, "--gpus": _gpus, "--gpus-per-node": _gpus, "--gres": _gres,
    "--dependency": _dependency,
}  # fmt: skip
"""Options of sbatch whose value has another form."""
