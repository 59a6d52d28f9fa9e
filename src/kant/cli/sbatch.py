"""Translates options of sbatch, srun and salloc into options of `kant submit`.

Source of names, forms and defaults: sbatch(1) of Slurm 25.11 (https://slurm.schedmd.com/sbatch.html). Sizes that Slurm
states per node, task, core or GPU are combined: `kant submit` takes GPUs of the job, cores and memory of a node.
All errors are found before the first is reported.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from kant.model.errors import InputError
from kant.model.job_request import OPTIONS

SHORT = {said.option.slurm[1]: said.option.slurm[0] for said in OPTIONS.values() if said.option.slurm} | {
    "-t": "--time", "-G": "--gpus", "-d": "--dependency", "-H": "--hold", "-N": "--nodes", "-n": "--ntasks",
    "-C": "--constraint", "-w": "--nodelist", "-x": "--exclude", "-W": "--wait", "-m": "--distribution",
    "-s": "--oversubscribe", "-O": "--overcommit", "-Q": "--quiet", "-v": "--verbose", "-k": "--no-kill",
    "-M": "--clusters", "-L": "--licenses", "-i": "--input", "-B": "--extra-node-info", "-S": "--core-spec",
}  # fmt: skip
"""The short names of sbatch options."""
ALONE = frozenset({
    "--contiguous", "--exclusive", "--get-user-env", "--hold", "--ignore-pbs", "--no-kill", "--no-requeue",
    "--overcommit", "--oversubscribe", "--parsable", "--quiet", "--reboot", "--requeue", "--spread-job", "--test-only",
    "--use-min-nodes", "--verbose", "--wait",
})  # fmt: skip
"""Options without a value, or with a value after `=`."""
NOTHING = frozenset({
    "--parsable", "--quiet", "--verbose", "--requeue", "--get-user-env", "--export-file", "--no-kill",
    "--wait-all-nodes", "--kill-on-invalid-dep", "--ignore-pbs", "--use-min-nodes", "--spread-job", "--clusters",
})  # fmt: skip
"""Options that need nothing here: on one machine they always hold, or they request nothing."""
LEFT_OUT = frozenset({
    "--acctg-freq", "--bell", "--constraint", "--contiguous", "--core-spec", "--cores-per-socket", "--cpu-bind",
    "--cpu-freq", "--cluster-constraint", "--delay-boot", "--distribution", "--exclude", "--extra", "--extra-node-info",
    "--gpu-bind", "--gpu-freq", "--gres-flags", "--hint", "--mail-type", "--mail-user", "--mcs-label", "--mem-bind",
    "--network", "--nodelist", "--ntasks-per-core", "--ntasks-per-socket", "--overcommit", "--oversubscribe", "--power",
    "--prefer", "--profile", "--propagate", "--resv-ports", "--segment", "--sockets-per-node", "--switches",
    "--thread-spec", "--threads-per-core", "--tmp", "--time-min", "--tres-bind", "--wckey", "--mincpus",
})  # fmt: skip
"""Options without a meaning on one machine that do not change a job: they are reported and ignored."""
SIGNALS = {1: "HUP", 2: "INT", 3: "QUIT", 10: "USR1", 12: "USR2", 15: "TERM", 18: "CONT", 28: "WINCH"}


class SbatchOption(NamedTuple):
    """An sbatch option: its long name, its value (None: none is given), and where it was found, for messages."""

    name: str
    value: str | None
    place: str


class SbatchTranslation:
    """The translation of sbatch options: `options` of `kant submit`; options without a meaning here (`left_out`); and
    the errors in the others (`faults`).
    """

    def __init__(self, said: list[SbatchOption]) -> None:
        self.left_out: list[str] = []
        self.faults: list[InputError] = []
        self.options: list[list[str]] = []
        self.sizes: dict[str, SbatchOption] = {}
        for each in {one.name: one for one in said}.values():  # the last one counts, as in Slurm
            try:
                self.options += self._of(each)
            except InputError as error:
                self.faults.append(error)
        try:
            self.options = self._sizes() + self.options
        except InputError as error:
            self.faults.append(error)

    def _of(self, said: SbatchOption) -> list[list[str]]:
        name, value, place = said
        if name == "--nice" and value is None:
            said = said._replace(value="100")
        if name in _SIZES:
            self.sizes[name] = said._replace(value=_needed(said))
            return []
        if name in _SAME:
            return [[_SAME[name], _needed(said)]]
        if name in _FORMS:
            return [list(one) for one in _FORMS[name](_needed(said), place)]
        if name in _FLAGS:
            return [[_FLAGS[name]]]
        if name == "--open-mode":
            if _needed(said) != "truncate":
                self.left_out.append(f"{name}={value}")
            return []
        if name in NOTHING:
            return []
        if name in LEFT_OUT:
            self.left_out.append(name if value is None else f"{name}={value}")
            return []
        raise InputError(place, "an option of sbatch that Kant knows, or a #KANT line instead", name)

    # --- sizes --------------------------------------------------------------------------------------------------------

    def _number(self, name: str, least: int = 1) -> int:
        """Return the number of an option; 0 if it was not given."""
        said = self.sizes.get(name)
        if said is None:
            return 0
        text = str(said.value)
        if name == "--nodes":
            text = text.partition("-")[0].partition(",")[0]
        if not re.fullmatch("[0-9]{1,6}", text) or int(text) < least:
            raise InputError(said.place, f"a whole number after {name}", said.value)
        return int(text)

    def _gpus(self, name: str) -> int:
        """Parse `gpu:2`, `gpu:h100:2`, `h100:2` or 2; the model is ignored."""
        said = self.sizes.get(name)
        if said is None:
            return 0
        parts = str(said.value).split(",")
        own = [part for part in parts if name != "--gres" or part.split(":")[0] == "gpu"]
        total = 0
        for part in own:
            words = part.split("(")[0].split(":")
            if not (words[-1].isdigit() or (name == "--gres" and words == ["gpu"])):
                raise InputError(said.place, "GPUs such as gpu:2", said.value)
            total += int(words[-1]) if words[-1].isdigit() else 1
        if not own:
            raise InputError(said.place, "GPUs such as gpu:2", said.value)
        self.left_out += [f"{name}={part}" for part in parts if part not in own]
        return total

    def _sizes(self) -> list[list[str]]:
        """Return the GPUs of the job, nodes, tasks, cores and memory, from sizes given per node, task, core or GPU."""
        total, of_task = self._gpus("--gpus"), self._gpus("--gpus-per-task")
        of_node = self._gpus("--gpus-per-node") or self._gpus("--gres") or self._gpus("--gpus-per-socket")
        nodes, per_node = self._number("--nodes"), self._number("--ntasks-per-node")
        tasks, per_gpu = self._number("--ntasks"), self._number("--ntasks-per-gpu")
        if not nodes:
            nodes = -(-tasks // per_node) if tasks and per_node else 1
        if not tasks:
            tasks = nodes * per_node or (total or of_node * nodes) * per_gpu or nodes
        if tasks < nodes:
            nodes = tasks  # as Slurm does
        gpus = total or of_task * tasks or of_node * nodes
        if gpus % nodes:
            where = next(self.sizes[name] for name in _GPUS if name in self.sizes)
            raise InputError(where.place, f"as many GPUs on each of {nodes} nodes", gpus)
        here, gpus_here = -(-tasks // nodes), gpus // nodes
        cores = self._number("--cpus-per-task") * here or self._number("--cpus-per-gpu") * gpus_here
        if not cores and here > 1 and not gpus:
            cores = here
        memory = self._memory("--mem") or self._memory("--mem-per-cpu") * (cores or here)
        memory = memory or self._memory("--mem-per-gpu") * gpus_here
        found = {
            "--gpus": str(gpus) if gpus else "",
            "--cpus": str(cores) if cores else "",
            "--memory": f"{memory}MiB" if memory else "",
            "--nodes": str(nodes) if nodes > 1 else "",
            "--tasks": str(tasks) if tasks > nodes or per_node else "",
            "--task-gpus": str(of_task) if of_task and tasks > 1 else "",
        }
        return [[name, value] for name, value in found.items() if value]

    def _memory(self, name: str) -> int:
        """Return MiB; 0 if nothing is given, or if all memory of the node is requested."""
        said = self.sizes.get(name)
        match = re.fullmatch(r"(\d+)([KMGT]?)B?", str(said.value), re.IGNORECASE) if said is not None else None
        if said is not None and match is None:
            raise InputError(said.place, "an amount of memory such as 16G", said.value)
        if match is None:
            return 0
        size = int(match[1])
        return {"K": -(-size // 1024), "": size, "M": size, "G": size << 10, "T": size << 20}[match[2].upper()]


# --- the forms of values ----------------------------------------------------------------------------------------------


def _needed(said: SbatchOption) -> str:
    if not said.value:
        raise InputError(said.place, f"a value after {said.name}")
    return said.value


def time_of(value: str, place: str) -> list[list[str]]:
    """Parse minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS; UNLIMITED, INFINITE and 0 are no limit."""
    if value.upper() in ("UNLIMITED", "INFINITE", "0", "-1"):
        return []
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
    return [["--time", f"{((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds}s"]]


def _dependency(value: str, place: str) -> list[list[str]]:
    kinds = {
        "afterany": "--after", "afterok": "--after-ok", "afternotok": "--after-not-ok", "after": "--after-started",
        "aftercorr": "--after-each", "afterburstbuffer": "--after",
    }  # fmt: skip
    if "?" in value and "," in value:
        raise InputError(place, "dependencies separated either by `,` (all of them) or by `?` (one of them)", value)
    found = [["--after-one"]] if "?" in value else []
    for part in re.split("[,?]", value):
        kind, _, jobs = part.partition(":")
        if part == "singleton":
            found.append(["--singleton"])
            continue
        if kind not in kinds or not jobs or not all(jobs.split(":")):
            forms = ", ".join(kinds)
            raise InputError(place, f"{forms} with jobs, such as afterok:12:13, or singleton", part)
        for job in jobs.split(":"):
            number, plus, minutes = job.partition("+")
            if plus and (kind != "after" or not minutes.isdigit()):
                raise InputError(place, "minutes after the start of a job, such as after:12+30", part)
            found.append([kinds[kind], f"{number}+{minutes}m" if plus else number])
    return found


def dependencies_of(value: str, place: str) -> dict[str, object]:
    """Return the fields of `Dependencies` for a value of `--dependency`; no fields for `none`. Raises InputError."""
    found: dict[str, Any] = {}
    for option, *job in _dependency(value, place) if value != "none" else ():
        field = option.removeprefix("--").replace("-", "_")
        if job:
            found.setdefault(field, []).append(re.sub(r"\+(\d+)m$", lambda match: f"+{int(match[1]) * 60}", job[0]))
        else:
            found[field] = True
    return found


_UNITS = {"": "s", "second": "s", "minute": "m", "hour": "h", "day": "d", "week": "w"}
_NAMED = {"midnight": "00:00", "noon": "12:00", "elevenses": "11:00", "fika": "15:00", "teatime": "16:00"}


def _begin(value: str, place: str) -> list[list[str]]:
    """Parse a value of `--begin`: now+1hour, 16:00, 4PM, noon, tomorrow, 2030-01-31T08:00, 01/31/30."""
    low = value.lower()
    if low in ("now", "today"):
        return []
    if match := re.fullmatch(r"now\+(\d+)\s*(second|minute|hour|day|week|)s?", low):
        count, unit = int(match[1]), _UNITS[match[2]]
        return [["--begin", f"{count * 7}d" if unit == "w" else f"{count}{unit}"]]
    if low == "tomorrow":
        return [["--begin", "1d"]]
    if low in _NAMED:
        return [["--begin", _NAMED[low]]]
    if (match := re.fullmatch(r"(\d{1,2}):?(\d{2})?(?::\d{2})?\s*([ap]m)?", low)) and (match[2] or match[3]):
        hour = int(match[1]) % 12 + 12 * (match[3] == "pm") if match[3] else int(match[1])
        return [["--begin", f"{hour:02}:{match[2] or '00'}"]]
    if match := re.fullmatch(r"(\d{2})/?(\d{2})/?(\d{2}|\d{4})(?:-(\d{2}:\d{2}(?::\d{2})?))?", low):
        year = match[3] if len(match[3]) == 4 else f"20{match[3]}"
        return [["--begin", f"{year}-{match[1]}-{match[2]}T{match[4] or '00:00'}"]]
    if re.fullmatch(r"now\+[0-9.]+[smhd]|[0-9.]+[smhd]|\d{4}-\d{2}-\d{2}(t\d{2}:\d{2}(:\d{2})?)?", low):
        return [["--begin", value.removeprefix("now+")]]
    raise InputError(place, "a time of Slurm such as now+1hour, 16:00 or 2030-01-31T08:00", value)


def _signal(value: str, place: str) -> list[list[str]]:
    """Parse a value of `--signal`: [{R|B}:]SIGNAL[@SECONDS], by default 60 seconds before the limit."""
    match = re.fullmatch(r"(?:[RB]{1,2}:)?(?:SIG)?([A-Z0-9]+)(?:@(\d+))?", value, re.IGNORECASE)
    name = match[1].upper() if match is not None else ""
    name = SIGNALS.get(int(name), "") if name.isdigit() else name
    if match is None or name not in SIGNALS.values():
        raise InputError(place, "a signal and seconds before the limit, such as B:USR1@300", value)
    return [["--warn", f"{match[2] or 60}s"], *([["--warn-signal", name]] if name != "USR1" else [])]


def _export(value: str, place: str) -> list[list[str]]:
    """Parse a value of `--export`: ALL, NONE or NIL, and names of variables, some with values."""
    words = [word for word in value.split(",") if word]
    pairs = [["--env", word] for word in words if "=" in word]
    names = [word for word in words if "=" not in word and word.upper() not in ("ALL", "NONE", "NIL")]
    if any(word.upper() == "ALL" for word in words):
        return pairs
    return [["--export", ",".join(names) or "none"], *pairs]


def _nice(value: str, place: str) -> list[list[str]]:
    if not re.fullmatch("-?[0-9]{1,9}", value):
        raise InputError(place, "a whole number after --nice", value)
    return [["--priority", str(-int(value))]]


_SAME = {said.option.slurm[0]: said.flags[0] for said in OPTIONS.values() if said.option.slurm}
_GPUS = ("--gpus", "--gpus-per-task", "--gpus-per-node", "--gres", "--gpus-per-socket")
_SIZES = frozenset(_GPUS) | {
    "--nodes", "--ntasks", "--ntasks-per-node", "--ntasks-per-gpu", "--cpus-per-task", "--cpus-per-gpu", "--mem",
    "--mem-per-cpu", "--mem-per-gpu",
}  # fmt: skip
"""Options about sizes, which are combined."""
for _name in _SIZES | {"--begin"}:
    _SAME.pop(_name, None)
"""Options of sbatch whose value has the same meaning in Kant."""
_FLAGS = {
    "--hold": "--hold", "--exclusive": "--exclusive", "--no-requeue": "--no-preemptible", "--wait": "--wait",
    "--test-only": "--test-only",
}  # fmt: skip
_FORMS: dict[str, Callable[[str, str], list[list[str]]]] = {
    "--time": time_of, "--dependency": _dependency, "--begin": _begin, "--signal": _signal, "--export": _export,
    "--nice": _nice, "--priority": lambda value, place: [["--priority", value]],
}  # fmt: skip
"""Options of sbatch whose value has another form in Kant."""
