"""The request of a job: each field once, with its bounds and its command-line option.

`kant submit`, `run` and `alloc`, the quick parser, the lines of scripts, the JSON of the API and the clients are
derived from it. `kant.model.submission` makes it a msgspec Struct. This module imports only `typing`: the run time of
`kant submit` is the import time of its modules.
"""

# No `from __future__ import annotations`: the annotations are read at run time.
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from msgspec import Struct

    from kant.model.elastic import Contract
    from kant.model.submission import Notice, StageOf, Terminal
else:

    class Struct:
        """Replaces msgspec's Struct where only the options are needed."""

        def __init_subclass__(cls, **_: Any) -> None:
            pass


class Limit(NamedTuple):
    """The bounds of a value; None: no bound."""

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    min_length: int | None = None
    max_length: int | None = None


class Option(NamedTuple):
    """The command-line option of a field: `--name`, by default the name of the field.

    `reads` says how its text is parsed: unchanged (text), number, whole, flag, folder, or by a reader of `kant.cli`.
    `flags` has its names if there are several, `slurm` those of sbatch with the same meaning. `default` is the value
    without the option; if not given, the default of the field. `many`: it may be repeated.
    """

    help: str
    reads: str = "text"
    name: str = ""
    flags: tuple[str, ...] = ()
    slurm: tuple[str, ...] = ()
    default: Any = ...
    many: bool = False


Text = Annotated[str, Limit(max_length=256)]
Path = Annotated[str, Limit(max_length=4096)]
Seconds = Annotated[float, Limit(ge=0, le=1e9)]
SignalName = Literal["HUP", "INT", "QUIT", "USR1", "USR2", "TERM", "STOP", "CONT", "KILL", "WINCH"]
Jobs = Annotated[tuple[Text, ...], Limit(max_length=1000)]


class JobRequest(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A command to run, and its requests. `command` is a program and its arguments, started without a shell.

    `gpus` is a whole number, or less than 1: a share of one GPU. Without GPUs `cpus` is 1 by default, else 0: not
    counted. `memory_mib` 0: not counted. A run is limited to what is counted. `time_s` is the time limit of one run
    (None: no limit); `warn_s` seconds before it, the run gets SIGUSR1, if it has a handler. When it is stopped it gets
    SIGTERM, and SIGKILL `grace_s` later.

    With `singleton` it starts after every earlier job of its user and name has ended. `array` submits it once for each
    index; at most `array_most` of them wait for a place or run at once (0: all). It starts after the jobs `after` have
    ended, those of `after_ok` have succeeded and those of `after_not_ok` have not, and not before `begin`, in seconds
    since the Unix epoch. A failed job is retried `retries` times. If not `preemptible`, no other job preempts it.
    `stage` is its stage of a workflow. Without a `terminal` no client can attach, and its standard input is empty. With
    a `reservation` it runs on the GPUs of that reservation, while that lasts. `training` describes what it trains, as
    in a trace (docs/step-time.md). Its output also goes to the file `output`, or its standard error to the file
    `error`: names in which `%` and a letter are replaced (docs/up.md). With `slurm` its environment has the variables
    that Slurm gives a batch script. `notices` are its notifications.

    With `nodes` it has this number of pods, each with its part of `gpus` and with its own `cpus` and `memory_mib`;
    several may share a node of the cluster. `tasks` is the number of processes that `srun` starts in it (0: one for
    each node), `task_gpus` the number of GPUs of its node that each of them sees (0: all). With `exclusive` no other
    job runs on its nodes. `after_started` are jobs that have to start first (`12+600`: 600 seconds before),
    `after_each` arrays of which the job of the same index has to succeed; with `after_one` one of all these
    dependencies is enough. `warn_signal` is sent in place of SIGUSR1. With a `contract` it may run with fewer GPUs, and
    is notified of each change (docs/elastic.md). With an `image` it runs in a container, which has its folder and the
    `mounts`; in a job with several `tasks` or with `slurm` each task runs in a container of its own. `account`, `qos`
    and `comment` are only recorded; used time is counted by account.
    """

    command: Annotated[tuple[str, ...], Limit(min_length=1, max_length=4096)]
    gpus: Annotated[
        float, Limit(ge=0, le=100_000), Option("GPUs: a whole number, or a share of one such as 0.5.", "number")
    ] = 0
    cpus: Annotated[
        Annotated[float, Limit(ge=0, le=1e9)] | None,
        Option(
            "Cores. Default: 1 without GPUs, else no limit.", "number",
            slurm=("--cpus-per-task", "-c"),
        ),
    ] = None  # fmt: skip
    nodes: Annotated[
        int,
        Limit(ge=0, le=10_000),
        Option("The number of nodes, which may be virtual. Each has its part of --gpus, --cpus and --memory.", "whole"),
    ] = 0
    tasks: Annotated[
        int, Limit(ge=0, le=100_000), Option("Processes that srun starts. Default: one for each node.", "whole")
    ] = 0
    task_gpus: Annotated[
        int, Limit(ge=0, le=1024), Option("GPUs that each task sees. Default: all of its job on its node.", "whole")
    ] = 0
    exclusive: Annotated[bool, Option("Run no other job on its nodes.", "flag")] = False
    memory_mib: Annotated[
        int,
        Limit(ge=0, le=10**9),
        Option("Main memory, such as 16GiB. Default: not counted.", "memory", "memory", default=None),
    ] = 0
    time_s: Annotated[
        Annotated[float, Limit(gt=0, le=1e9)] | None,
        Option("The time limit, such as 2h. Default: none.", "limit", "time"),
    ] = None
    name: Annotated[Text, Option("The name of the job.", slurm=("--job-name", "-J"))] = ""
    queue: Annotated[Text, Option("The queue of the job.", slurm=("--partition", "-p"))] = "default"
    priority: Annotated[int, Limit(ge=-(10**9), le=10**9), Option("Jobs of higher priority start first.", "whole")] = 0
    array: Annotated[
        tuple[Annotated[int, Limit(ge=0, le=10**9)], ...],
        Limit(max_length=100_000),
        Option(
            "Submit it once for each index, such as 0-9, 1,3,5-7, 0-10:2; 0-99%8: 8 at a time.", "array", default=None,
            slurm=("--array", "-a"),
        ),
    ] = ()  # fmt: skip
    array_most: Annotated[int, Limit(ge=0, le=100_000)] = 0
    after: Annotated[
        Jobs, Option("Start when this job has ended; may be repeated.", flags=("--after", "--after-any"), many=True)
    ] = ()
    after_ok: Annotated[Jobs, Option("Start when this job has succeeded; may be repeated.", many=True)] = ()
    after_not_ok: Annotated[Jobs, Option("Start when this job has not succeeded; may be repeated.", many=True)] = ()
    after_started: Annotated[
        Jobs, Option("Start when this job has started; 12+30m: 30 minutes later; may be repeated.", "starts", many=True)
    ] = ()
    after_each: Annotated[
        Jobs, Option("Start each index when the same index of this array has succeeded; may be repeated.", many=True)
    ] = ()
    after_one: Annotated[bool, Option("Start when one of these conditions holds, not all.", "flag")] = False
    singleton: Annotated[bool, Option("Start when no earlier job of yours with this name waits or runs.", "flag")] = (
        False
    )
    begin: Annotated[
        float,
        Limit(ge=0, le=1e11),
        Option(
            "The earliest start: 2h from now, 22:00, 2030-01-31T08:00.", "moment", default=None, slurm=("--begin", "-b")
        ),
    ] = 0.0
    retries: Annotated[int, Limit(ge=0, le=1000), Option("The number of retries after a failure.", "whole")] = 0
    warn_s: Annotated[
        Seconds,
        Option("Send SIGUSR1 this long before the limit, if the job handles it.", "limit", "warn", default="60s"),
    ] = 60.0
    warn_signal: Annotated[SignalName, Option("The signal that --warn sends instead, such as TERM.", "signal")] = "USR1"
    grace_s: Annotated[
        Seconds, Option("The time between SIGTERM and SIGKILL when it is stopped.", "limit", "grace", default="30s")
    ] = 30.0
    env: Annotated[
        dict[str, str],
        Option("NAME=VALUE, in addition to the current environment; may be repeated.", "pairs", default=(), many=True),
        Option(
            "Pass only these variables of the current environment, such as HOME,LANG; none: a minimum.",
            "",
            "export",
            default=None,
        ),
    ] = {}  # noqa: RUF012 - msgspec copies it
    workdir: Annotated[
        Path, Option("The working folder. Default: the current one.", "folder", default=None, slurm=("--chdir", "-D"))
    ]
    account: Annotated[Text, Option("The account to which its time is charged.", slurm=("--account", "-A"))] = ""
    qos: Annotated[
        Text, Option("A quality of service, which is recorded and has no effect.", slurm=("--qos", "-q"))
    ] = ""
    comment: Annotated[
        str, Limit(max_length=1024), Option("A comment, which is recorded.", slurm=("--comment", "--comment"))
    ] = ""
    image: Annotated[str, Limit(max_length=1024), Option("The container image in which it runs (docs/up.md).")] = ""
    mounts: Annotated[
        tuple[Path, ...],
        Limit(max_length=64),
        Option(
            "A folder to mount in the container, such as /data or /data:/mnt:ro; may be repeated.",
            name="mount",
            many=True,
        ),
    ] = ()
    hold: Annotated[bool, Option("Do not start it before `kant release`.", "flag")] = False
    contract: Annotated[
        "Contract | None",
        Option("A TOML file that says with how few GPUs it may run (docs/elastic.md).", "contract", default=None),
    ] = None
    preemptible: Annotated[bool, Option("Other jobs may preempt it.", "flag")] = True
    umask: Annotated[int, Limit(ge=0, le=0o777)] = 0o022
    stage: "StageOf | None" = None
    terminal: Annotated[
        "Terminal | None", Option("Give it a terminal, for `kant attach`.", "terminal", default=False)
    ] = None
    reservation: Annotated[
        str,
        Limit(max_length=63),
        Option("Run on the GPUs of this reservation, while it lasts.", slurm=("--reservation", "--reservation")),
    ] = ""
    training: Annotated[
        str,
        Limit(max_length=2048),
        Option("What it trains: a TOML file, or text (docs/step-time.md).", "training", default=None),
    ] = ""
    output: Annotated[
        Path,
        Option("A file for its output, such as out/%x-%j.log.", flags=("--output", "-o"), slurm=("--output", "-o")),
    ] = ""
    error: Annotated[
        Path,
        Option(
            "A file for its standard error. Default: with the output.", flags=("--error", "-e"),
            slurm=("--error", "-e"),
        ),
    ] = ""  # fmt: skip
    slurm: Annotated[bool, Option("Give it the SLURM_ variables of a batch script, as #SBATCH lines do.", "flag")] = (
        False
    )
    notices: Annotated[
        "tuple[Notice, ...]",
        Limit(max_length=8),
        Option("A webhook address to notify when it has ended; may be repeated.", "", "webhook", default=(), many=True),
        Option("A shell command to run when it has ended; may be repeated.", "", "on_event", default=(), many=True),
        Option("The events of --webhook and --on-event, such as started,failed. Default: its end.", "", "events",
               default=None),
    ] = ()  # fmt: skip


class OptionField(NamedTuple):
    """A command-line option with all its names, and the field that it sets."""

    field: str
    option: Option
    flags: tuple[str, ...]
    default: Any

    @property
    def is_flag(self) -> bool:
        """Whether the option takes no value on the command line."""
        return self.option.reads in ("flag", "terminal")


def _options() -> dict[str, OptionField]:
    found: dict[str, OptionField] = {}
    for field, hint in JobRequest.__annotations__.items():
        for option in getattr(hint, "__metadata__", ()):
            if isinstance(option, Option):
                name = option.name or field
                default = getattr(JobRequest, field) if option.default is ... else option.default
                found[name] = OptionField(field, option, option.flags or (f"--{name.replace('_', '-')}",), default)
    return found


OPTIONS = _options()
"""The options of `kant submit` that set a field of a job, by the names of their parameters, in help order."""
