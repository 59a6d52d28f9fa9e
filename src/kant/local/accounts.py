"""Users as whom jobs run if Kant runs as root: their ids, groups and limits.

The limits are those of a login: limits.conf(5) of pam_limits, with its order of precedence.
"""

from __future__ import annotations

import grp
import os
import pwd
import re
import resource
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from kant.model.errors import InputError

LIMITS = Path("/etc/security")
ITEMS = {
    "core": (resource.RLIMIT_CORE, 1024),
    "data": (resource.RLIMIT_DATA, 1024),
    "fsize": (resource.RLIMIT_FSIZE, 1024),
    "memlock": (resource.RLIMIT_MEMLOCK, 1024),
    "nofile": (resource.RLIMIT_NOFILE, 1),
    "rss": (resource.RLIMIT_RSS, 1024),
    "stack": (resource.RLIMIT_STACK, 1024),
    "cpu": (resource.RLIMIT_CPU, 60),
    "nproc": (resource.RLIMIT_NPROC, 1),
    "as": (resource.RLIMIT_AS, 1024),
    "sigpending": (resource.RLIMIT_SIGPENDING, 1),
    "msgqueue": (resource.RLIMIT_MSGQUEUE, 1),
    "rtprio": (resource.RLIMIT_RTPRIO, 1),
    "nice": (resource.RLIMIT_NICE, 1),
}
"""The items of limits.conf: the resource, and the unit of its values."""
KINDS = ("soft", "hard")
NONE = ("unlimited", "infinity", "-1")
USER, GROUP, ANYBODY = range(3)  # the rule with the lowest number applies


class Account(Struct, frozen=True):
    """The user of a run. `limits` has rows (resource, soft limit, hard limit); -1: no limit, None: unchanged.

    `nice` is the initial niceness of the run's processes (None: unchanged). With `no_new_privs` no program can gain
    privileges.
    """

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    limits: tuple[tuple[int, int | None, int | None], ...] = ()
    nice: int | None = None
    no_new_privs: bool = False


def account_of(name: str) -> Account:
    """Return the user of this machine with this name, with the limits of the user's logins.

    Raises InputError if there is no such user.
    """
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        raise InputError("the user", "an account on this machine, which runs the job", name) from None
    groups = tuple(os.getgrouplist(name, found.pw_gid))
    return limited(Account(name, found.pw_uid, found.pw_gid, groups), _names(groups), _lines(LIMITS))


def home_of(name: str) -> str:
    """Return the home folder of a user of this machine; "" if there is no such user."""
    try:
        return pwd.getpwnam(name).pw_dir
    except KeyError:
        return ""


def _names(groups: Iterable[int]) -> frozenset[str]:
    found = set()
    for gid in groups:
        with suppress(KeyError):
            found.add(grp.getgrgid(gid).gr_name)
    return frozenset(found)


def _lines(folder: Path) -> list[str]:
    """Return the lines of all files, in order of precedence."""
    files = [folder / "limits.conf", *sorted((folder / "limits.d").glob("*.conf"))]
    return [line for file in files if file.is_file() for line in file.read_text(errors="replace").splitlines()]


def limited(account: Account, groups: frozenset[str], lines: Iterable[str]) -> Account:
    """Return the account with the limits of limits.conf(5); `groups` are the names of its groups.

    A rule for the user overrides a rule for a group, which overrides a rule for everyone (`*`); of two equally specific
    rules the later applies. Rules for groups and for everyone do not apply to root.
    """
    said: dict[tuple[str, str], tuple[int, int]] = {}  # item and kind: precedence and value
    exempt = ANYBODY + 1
    for line in lines:
        words = line.partition("#")[0].split()
        near = _nearness(words[0], account, groups) if words[1:2] in (["soft"], ["hard"], ["-"]) else None
        if near is None:
            continue
        if words[1:] == ["-"]:  # the rule exempts from all limits
            exempt = min(exempt, near)
        value = _value(words[2], words[3]) if len(words) == 4 else None
        for kind in KINDS if words[1] == "-" else (words[1],):
            if value is not None and said.get((words[2], kind), (near, 0))[0] >= near:
                said[words[2], kind] = near, value
    kept = {key: value for key, (near, value) in said.items() if near < exempt}
    one = {item: value for (item, _), value in kept.items()}  # for resources with only one value for both limits
    rows = ((number, *(kept.get((item, kind)) for kind in KINDS)) for item, (number, _) in ITEMS.items())
    return replace(
        account,
        limits=tuple((number, soft, hard) for number, soft, hard in rows if soft is not None or hard is not None),
        nice=one.get("priority"),
        no_new_privs=one.get("nonewprivs") == 1,
    )


def _nearness(domain: str, account: Account, groups: frozenset[str]) -> int | None:
    """Return how specific a domain of limits.conf is for a user (lower is more specific); None if it does not match."""
    if domain == account.name or _in_range(domain, (account.uid,), account.uid):
        return USER
    if account.uid == 0:
        return None
    if domain.startswith("@") and (domain[1:] in groups or _in_range(domain[1:], account.groups, account.gid)):
        return GROUP
    return ANYBODY if domain == "*" else None


def _in_range(text: str, ids: Collection[int], first: int) -> bool:
    """Return whether a text `:ID` names one of `ids`, or a range `LOW:HIGH` or `LOW:` contains `first`."""
    match = re.fullmatch(r"(\d{0,10}):(\d{0,10})", text)
    if match is None or text == ":":
        return False
    low, high = match.groups()
    return int(high) in ids if not low else int(low) <= first and (not high or first <= int(high))


def _value(item: str, text: str) -> int | None:
    """Return the value for the system call; None if the item does not limit processes, or the value is invalid."""
    if item in ("priority", "nice", "nonewprivs"):
        number = int(text) if re.fullmatch(r"-?\d{1,2}", text) else None
        return 20 - number if number is not None and item == "nice" else number
    if item not in ITEMS:
        return None
    if text in NONE:
        return -1 if item != "nofile" else int(Path("/proc/sys/fs/nr_open").read_text())
    return int(text) * ITEMS[item][1] if re.fullmatch(r"\d{1,15}", text) else None
