"""Options in scripts: `#KANT` lines are options of `kant submit`, `#SBATCH` lines those of Slurm.

The lines precede the script's first command. Options of the command line take precedence.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from pathlib import Path

from kant.model.errors import InputError, together
from kant.model.job_request import OPTIONS

PIPE = "standard input"
MOST = 1 << 20  # bytes of a script that are read
BEHIND_LOGIN = 'PATH="${KANT_SHIMS:+$KANT_SHIMS:}$PATH"; . "$0"'
"""Runs a script in a login shell, with Slurm's commands on the PATH that the shell has set."""
REPEATED = frozenset(flag for said in OPTIONS.values() if said.option.many for flag in said.flags)
FLAGS = frozenset({flag for said in OPTIONS.values() if said.is_flag for flag in said.flags}) | {
    "--no-preemptible", "--wait", "--test-only", "--json", "--kube", "--no-kube"
}  # fmt: skip
OWN_SHORT = {said.flags[1]: said.flags[0] for said in OPTIONS.values() if said.flags[-1][1] != "-"} | {
    "-n": "--namespace"
}
"""The short names of options of `kant submit`."""


def expanded(arguments: list[str]) -> list[str]:
    """Return the arguments of `kant submit`, with the options from the head of its script, and the command that runs
    the script. Raises InputError for an invalid line of the script.
    """
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
    path, words = str(script.absolute()), _interpreter(text)
    runs = [path] if os.access(script, os.X_OK) else [*words, path]
    if "--slurm" in (*said, *options) and words[1:] and words[1] in ("-l", "--login"):  # a login shell sets PATH again
        runs = [*words, "-c", BEHIND_LOGIN, path]
    return ["submit", *said, *options, "--", *runs, *rest]


def _found_by_name(word: str) -> bool:
    """Whether the shell finds a program of this name."""
    from shutil import which

    return "/" not in word and which(word) is not None


def command_at(arguments: list[str]) -> int | None:
    """Return the position of the command in the arguments; None if there is no command."""
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
    """Read standard input if it is a pipe or a file; else return ""."""
    try:
        kind = os.fstat(sys.stdin.fileno()).st_mode
        return sys.stdin.read(MOST) if stat.S_ISFIFO(kind) or stat.S_ISREG(kind) else ""
    except (OSError, ValueError, AttributeError, UnicodeDecodeError):
        return ""


def _text_of(script: Path) -> str:
    """Return the text of a script; empty if it is not a file, or is a binary program."""
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
    """Return the shell that takes a script after -c. Raises InputError for another kind of script."""
    words = _interpreter(text)
    name = Path(words[-1].split()[0]).name if words else "sh"
    if name not in ("sh", "bash", "dash", "zsh", "ksh"):
        raise InputError(PIPE, "a shell script (submit another kind as a file)", name)
    return name


def _options(where: str, text: str, given: list[str]) -> list[str]:
    """Return the options in the head of a script that are not among the given ones."""
    if "#KANT" not in text and "#SBATCH" not in text:
        return []
    from kant.cli.sbatch import SHORT, SbatchOption, SbatchTranslation

    said = {_long(word.partition("=")[0]) for word in given if word.startswith("-")}
    found: list[list[str]] = []
    of_slurm: list[SbatchOption] | None = None
    faults: list[InputError] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip() and not line.startswith("#"):
            break
        kind, _, rest = line.partition(" ")
        if kind not in ("#KANT", "#SBATCH"):
            continue
        place = f"{where}, line {number}"
        of_slurm = [] if of_slurm is None and kind == "#SBATCH" else of_slurm
        try:
            pairs = _pairs(_words(rest, place), place)
            if kind == "#SBATCH" and of_slurm is not None:
                of_slurm += [SbatchOption(SHORT.get(name, name), value, place) for name, value in pairs]
            else:
                found += [_checked(name, value, place) for name, value in pairs]
        except InputError as error:
            faults.append(error)
    if of_slurm is not None:
        made = SbatchTranslation(of_slurm)
        faults += made.faults
        found = made.options + found
        if made.left_out and not faults:
            have, are = ("has", "is") if len(made.left_out) == 1 else ("have", "are")
            left = f"{', '.join(made.left_out)} {have} no meaning on one machine and {are} ignored"
            print(f"kant: {where}: {left}", file=sys.stderr)
    _raise(faults, where)
    last = {name: option for option in found if (name := option[0]) not in said}  # the last one counts
    chosen = [option for option in found if option[0] in REPEATED or last.get(option[0]) is option]
    options = [word for option in chosen for word in option]
    if of_slurm is not None:
        name = Path(where).name if where != PIPE else "sbatch"  # the name that sbatch gives to a job without one
        options += [] if "--name" in (*said, *options) or _is_of_kubernetes(said) else ["--name", name]
        options += [] if "--slurm" in said else ["--slurm"]
        _warn(where, text)
    return options


def _words(rest: str, place: str) -> list[str]:
    import shlex

    try:
        return shlex.split(rest, comments=True)
    except ValueError as error:
        raise InputError(place, f"options in shell syntax ({error})", rest) from None


def _raise(faults: list[InputError], where: str) -> None:
    """Raise all errors of a script as one sentence, in line order."""
    if faults:
        faults.sort(key=lambda fault: int(fault.where.rpartition(" ")[2]) if fault.where[-1:].isdigit() else 0)
        raise together(faults, where)


def _long(name: str) -> str:
    """Return the long name of an option of `kant submit`; the value may directly follow a short name."""
    return name if name.startswith("--") else OWN_SHORT.get(name[:2], name)


def _is_of_kubernetes(said: set[str]) -> bool:
    """Whether the job is for Kubernetes, which has rules for names."""
    return bool(os.environ.get("KANT_KUBE") or said & {"--kube", "--context", "--namespace", "--kubeconfig"})


def _warn(where: str, text: str) -> None:
    """Warn of variables of Slurm that a script reads and Kant does not set."""
    from kant.local.slurm import NAMES

    code = "\n".join(re.sub(r"(^|\s)#.*", "", line) for line in text.splitlines())
    own = set(re.findall(r"(?:^|[\s;&(])(SLURMD?_\w+)=", code))
    missing = sorted(set(re.findall(r"(?<!\w)SLURMD?_[A-Z]\w*", code)) - NAMES - own)
    if missing:
        what = f"{', '.join(missing)}, which Kant does not set (docs/up-slurm.md has those that it sets)"
        print(f"kant: {where} reads {what}", file=sys.stderr)


def _pairs(words: list[str], place: str) -> list[tuple[str, str | None]]:
    """Return the options of a line with their values."""
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
    """Return an option of Kant. Raises InputError for one that `kant submit` does not have."""
    from kant.cli.verbs import app_of

    takes = app_of("submit")["submit"].assemble_argument_collection()
    if name not in {each for argument in takes for each in argument.names if each.startswith("-")}:
        raise InputError(place, "an option of `kant submit`", name)
    long = _long(name)
    return [long] if value is None else [long, value]
