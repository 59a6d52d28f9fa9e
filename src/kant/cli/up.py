"""`kant up` and `kant down`: Kant as the scheduler of this machine."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from kant.cli.inputs import Home, Queues, load_profile, whole
from kant.cli.page import tell
from kant.cli.plain import say
from kant.local.power import read_caps
from kant.model.errors import InputError, SentenceError
from kant.model.tenant import QueueConfig
from kant.model.units import SECOND, parse_duration
from kant.service.client import ServiceClient, home_of
from kant.service.socket_access import Certificate
from kant.workload.cluster_file import read_cluster
from kant.workload.tenants_file import read_tenants

if TYPE_CHECKING:
    from kant.service.oidc import Oidc

LISTEN = "127.0.0.1:5268"  # K-A-N-T on the keypad of a telephone
MOST_FRONT_ENDS = 64
PATIENCE = 60.0  # seconds until a Kant that starts or stops has to answer


PowerCap = Annotated[
    str | None,
    Parameter(
        help="The most power that the used GPUs of a machine draw together, such as 2.1kW: no further GPU is used. "
        "Default: all may be in use."
    ),
]
GpuWatts = Annotated[
    str | None, Parameter(help="The most power that one GPU draws, such as 700W. Default: as reported by NVML.")
]


def up(
    *,
    home: Home = None,
    cluster: Annotated[
        str | None, Parameter(help="A virtual cluster: NxG or a cluster file. Default: this machine.")
    ] = None,
    profile: Annotated[str, Parameter(help="A built-in profile (see `kant profiles`) or a TOML file.")] = "kant",
    queues: Queues = None,
    listen: Annotated[
        str | None,
        Parameter(
            help="The address of the page and the API, such as 127.0.0.1:8080; none: only the socket. "
            "Default: 127.0.0.1:5268, or a free port if that is in use."
        ),
    ] = None,
    token_file: Annotated[
        Path | None, Parameter(help="A file with tokens (see `kant token`), in addition to those of the home.")
    ] = None,
    oidc: Annotated[
        Path | None, Parameter(help="A file that names a trusted identity provider, and its groups.")
    ] = None,
    proxy_name: Annotated[
        tuple[str, ...], Parameter(help="The public name of a proxy in front of Kant; may be repeated.")
    ] = (),
    tls_cert: Annotated[
        Path | None, Parameter(help="Serve HTTPS with this certificate, a PEM file with its chain.")
    ] = None,
    tls_key: Annotated[Path | None, Parameter(help="The private key of --tls-cert, a PEM file.")] = None,
    users: Annotated[
        str,
        Parameter(
            help="Members of this Unix group submit over the socket, and each job runs as its own user. "
            "Needs root. Default: all jobs run as the user who started Kant."
        ),
    ] = "",
    front_ends: Annotated[
        int,
        Parameter(
            help="The number of front-end processes, which accept short jobs and submit them in batches (docs/up.md).",
            converter=whole,
        ),
    ] = 0,
    join_listen: Annotated[
        str | None,
        Parameter(
            help="Where other machines may join (`kant join`), such as 0.0.0.0:5269: with mutual TLS, by the token of "
            "`kant token join`. Default: none may join."
        ),
    ] = None,
    idle_gpus: Annotated[
        str | None,
        Parameter(
            help="Stop an interactive job (`kant run`, `kant alloc`) whose GPUs are idle for this time, such as 1h; "
            "its terminal is warned after half of it. Default: never."
        ),
    ] = None,
    power_cap: PowerCap = None,
    pool_power_cap: Annotated[
        str | None,
        Parameter(
            help="The most power that the used GPUs of this machine and of all joined ones draw together, such as 5kW. "
            "Default: all may be in use."
        ),
    ] = None,
    gpu_watts: GpuWatts = None,
    log_size: Annotated[str, Parameter(help="The largest stored output of one run.")] = "1GiB",
    notices: Annotated[
        Path | None, Parameter(help="A TOML file of notices about jobs: which events, and to whom (docs/up.md).")
    ] = None,
    otlp: Annotated[
        str | None,
        Parameter(
            help="Send a trace of each job, from its submission to its exit, to this OpenTelemetry collector, such as "
            "http://localhost:4318. Default: none."
        ),
    ] = None,
    keep_days: Annotated[
        int,
        Parameter(help="Days for which ended jobs, their logs and journals are kept; 0: for ever.", converter=whole),
    ] = 90,
    log_format: Annotated[str, Parameter(help="json or logfmt.")] = "logfmt",
    log_level: Annotated[str, Parameter(help="debug, info, warning or error.")] = "info",
    detach: Annotated[bool, Parameter(help="In the background, until `kant down`.", negative="")] = False,
) -> int:
    """Schedule commands on this machine until stopped. Running jobs then continue, and the next `kant up` finds
    them."""
    place = home_of(home)
    if not 0 <= front_ends <= MOST_FRONT_ENDS:
        raise InputError("--front-ends", f"a number from 0 to {MOST_FRONT_ENDS}", front_ends)
    if front_ends and users:
        raise InputError("--front-ends and --users", "only one of them, since front ends serve only Kant's owner")
    if detach:
        return _detach(place)
    from kant.live.otlp import traces_url
    from kant.service.daemon import DaemonOptions, serve
    from kant.service.notices import NONE, read_notices
    from kant.service.reload import Files

    return serve(
        DaemonOptions(
            home=place,
            profile=load_profile(profile),
            cluster=read_cluster(cluster) if cluster is not None else None,
            queue_config=read_tenants(queues) if queues is not None else QueueConfig(),
            listen={None: LISTEN, "none": ""}.get(listen, listen) or "",
            any_port=listen is None,
            proxy_names=proxy_name,
            on_listen=tell,
            files=Files(
                _file(profile), _absolute(queues), _file(cluster), _certificate(tls_cert, tls_key), _absolute(notices)
            ),
            users=users,
            front_ends=front_ends,
            notices=read_notices(notices) if notices is not None else NONE,
            traces=traces_url(otlp, "--otlp") if otlp is not None else "",
            token_file=token_file,
            join_listen=join_listen or "",
            oidc=_oidc(oidc) if oidc is not None else None,
            idle_s=parse_duration(idle_gpus, "--idle-gpus") / SECOND if idle_gpus is not None else 0.0,
            power=read_caps(power_cap, pool_power_cap, gpu_watts, cluster is not None),
            log_bytes=parse_size(log_size),
            keep_days=_days(keep_days),
            log_format=log_format,
            log_level=log_level,
        )
    )


def _oidc(path: Path) -> Oidc:
    from kant.service.oidc import Oidc, read_oidc

    return Oidc(read_oidc(path))


def _file(given: str | None) -> Path | None:
    """Return the absolute path of a file; None for None, for a built-in name, and for a name without a file."""
    from kant.scheduler.profile import builtin_texts

    named = given is None or given in builtin_texts() or not Path(given).is_file()
    return None if named else Path(given or "").absolute()


def _absolute(path: Path | None) -> Path | None:
    return path.absolute() if path is not None else None


def _certificate(chain: Path | None, key: Path | None) -> Certificate | None:
    if (chain is None) != (key is None):
        raise InputError("--tls-cert and --tls-key", "both, or none")
    return Certificate(chain.absolute(), key.absolute()) if chain is not None and key is not None else None


def _days(days: int) -> int:
    if not 0 <= days <= 100_000:
        raise InputError("--keep-days", "days from 0 (for ever) to 100,000", days)
    return days


def parse_size(text: str) -> int:
    """Parse bytes such as 500MiB. Raises InputError."""
    match = re.fullmatch(r"([0-9]{1,9}) ?(KiB|MiB|GiB|TiB)", text)
    if match is None or int(match[1]) == 0:
        raise InputError("--log-size", "a size such as 500MiB", text)
    return int(match[1]) << {"KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40}[match[2]]


def _detach(home: Path) -> int:
    """Start the same command again in the background, in its own session, and wait until it answers."""
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    said = home / "kant.log"
    arguments = [each for each in sys.argv[1:] if each != "--detach"]
    with os.fdopen(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as out:
        begins = out.tell()
        child = subprocess.Popen(
            [sys.executable, "-m", "kant", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    # these modules load while the other process starts
    from kant.cli.show import console
    from kant.service.callers import page_token

    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if child.poll() is not None:
            with said.open("rb") as file:
                file.seek(begins)
                lines = file.read().decode(errors="replace").strip().splitlines()
            reason = next((line for line in reversed(lines) if line.startswith("kant: ")), "")
            raise StartError(reason.removeprefix("kant: ") or f"kant up: expected to start (see {said})")
        try:
            found = ServiceClient(home, here=True).get("/v1/health")
        except InputError:
            time.sleep(0.05)
            continue
        if found["pid"] == child.pid:
            if found["here"]:
                say(found["here"])
            console.print(f"Kant is up: process {child.pid}, home {home}, log {said}", soft_wrap=True)
            address = ServiceClient(home, here=True).get("/v1/whoami")["address"]
            if address:
                tell(address, page_token(home))
            if found["starting"]:
                console.print(found["starting"], style="dim")
            return 0
    raise InputError("kant up", f"an answer within {PATIENCE:g} s (see {said})")


class StartError(SentenceError):
    """The background process did not start; has its error message."""


def down(*, home: Home = None) -> int:
    """Stop Kant. Running jobs continue, and the next `kant up` finds them."""
    from kant.cli.show import console

    found = ServiceClient(home_of(home), here=True).post("/v1/stop")
    with suppress(OSError):
        watched = os.pidfd_open(found["pid"])
        select.select([watched], [], [], PATIENCE)
        os.close(watched)
    running = found["running"]
    console.print(f"Kant is down; {running} {'job continues' if running == 1 else 'jobs continue'}")
    return 0
