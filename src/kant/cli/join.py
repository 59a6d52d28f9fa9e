"""`kant join`: this machine runs jobs for Kant on another machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

from cyclopts import Parameter
from msgspec.structs import replace

from kant.cli.inputs import Home, Json
from kant.cli.output import Reply
from kant.cli.up import GpuWatts, PowerCap
from kant.local.joined import keys
from kant.local.power import capped, read_caps
from kant.model.errors import InputError
from kant.model.units import SECOND, parse_limit
from kant.service.client import ServiceClient, home_of
from kant.workload.cluster_file import read_cluster

MINE = 0o77  # permissions that other users must not have


def join(
    address: Annotated[str, Parameter(help="Where Kant accepts machines, such as gpu1 or 10.0.0.1:5269.")],
    /,
    *,
    token_file: Annotated[
        Path | None,
        Parameter(help="A file with the output of `kant token join` there; - for standard input. Needed once."),
    ] = None,
    name: Annotated[
        str | None,
        Parameter(help="The name by which other machines reach this one; jobs see it. Default: the host name."),
    ] = None,
    cluster: Annotated[
        str | None, Parameter(help="A virtual machine, such as 1x4. Default: what this machine has.")
    ] = None,
    home: Annotated[
        Path | None,
        Parameter(help="A folder on a disk of this machine for its runs. Default: /var/tmp/kant-USER-NAME."),
    ] = None,
    power_cap: PowerCap = None,
    gpu_watts: GpuWatts = None,
    log_format: Annotated[str, Parameter(help="json or logfmt.")] = "logfmt",
    log_level: Annotated[str, Parameter(help="debug, info, warning or error.")] = "info",
) -> int:
    """Run jobs of Kant on another machine until stopped. Running jobs then continue for a minute, in which the next
    `kant join` finds them."""
    from kant.live.logs import set_up
    from kant.local import machine
    from kant.local.joined.agent import Agent, AgentOptions, serve
    from kant.service.daemon import locked

    host, port = keys.address(address, "ADDRESS")
    own = name or os.uname().nodename
    place = _home(home, own)
    folder = place / "join"
    if token_file is not None:
        keys.take_token(_read(token_file), folder)
    elif not (folder / keys.THEIRS).exists():
        raise InputError("--token-file", "the output of `kant token join` on the first machine")
    devices = machine.devices() if cluster is None else []
    found = read_cluster(cluster) if cluster is not None else machine.this_machine(devices)
    if len(found.nodes) != 1:
        raise InputError("--cluster", "one node, such as 1x4", cluster)
    set_up(log_format, log_level)
    cores = machine.own_cores() if cluster is None else ()
    node = replace(found.nodes[0], name=own)
    power = read_caps(power_cap, None, gpu_watts, cluster is not None, alone=True)
    watts = power.gpu
    try:
        watts = watts or machine.gpu_watts(devices)
    except InputError:
        if power.machine:
            raise
    if power.machine:
        node = capped(node, power.machine, watts)
    options = AgentOptions(place, folder, host, port, node, machine.visible(devices), cores, watts)
    with locked(place):
        return serve(Agent(options))


def leave(
    machine: Annotated[str, Parameter(help="The name of the machine, as in `kant top`.")],
    /,
    *,
    within: Annotated[
        str | None,
        Parameter(
            help="Stop the jobs that still run there after this time, such as 0s or 2h; they wait again. "
            "Default: they run to their end."
        ),
    ] = None,
    stay: Annotated[bool, Parameter(help="Cancel the removal: the machine accepts jobs again.", negative="")] = False,
    home: Home = None,
    json: Json = False,
) -> int:
    """Remove a machine that has joined. Nothing new starts there; once its last job has ended the machine is removed,
    and its `kant join` ends.

    A machine that no longer answers is removed when its jobs are given up. It may join again at any time.
    """
    if stay and within is not None:
        raise InputError("--stay and --within", "only one of them")
    within_s = None if within is None else parse_limit(within, "--within") / SECOND
    asked = {"within_s": within_s, "stays": stay}
    found = ServiceClient(home_of(home)).post(f"/v1/machines/{quote(machine, safe='')}/leave", asked)

    def show() -> None:
        runs = f"its jobs: {', '.join(found['jobs'])}" if found["jobs"] else "nothing runs there"
        print(f"{machine} {'stays' if stay else 'accepts no new jobs, and leaves'}; {runs}")

    return Reply(found, show).print(json)


def _home(given: Path | None, name: str) -> Path:
    """Return the folder of this machine's runs, which no other user may open. Raises InputError."""
    place = given.absolute() if given is not None else Path(f"/var/tmp/kant-{os.getuid()}-{name}")
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    about = place.lstat()
    if about.st_uid != os.getuid() or about.st_mode & MINE or place.is_symlink():
        raise InputError("--home", "a folder of this user that no other user may open", str(place))
    return place


def _read(path: Path) -> str:
    try:
        return sys.stdin.read() if str(path) == "-" else path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--token-file {path}", f"a file that can be read ({error})") from None
