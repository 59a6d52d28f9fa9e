"""Implements `kant run`, `alloc`, `attach` and `shell` without option parsing. Does not load the scheduler core."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from kant.cli.everyday import REJECTED, wanted
from kant.cli.machine_place import MachinePlace
from kant.cli.output import printable
from kant.cli.terminal import AGAIN, Conversation, is_terminal, window
from kant.cli.wait import NOT_WELL, SIGNALLED, code_of
from kant.model.errors import InputError
from kant.service.client import RefusedError, ServiceClient, home_of

INTERRUPTED = 130
SHOWN = 1 << 14
"""Bytes of earlier output that a newly attached client sees."""
LOOK = 1  # seconds for which one request waits for the end of a job


def begin(
    command: tuple[str, ...] | None, options: dict[str, Any], home: Path | None, escape: str, stays: bool = True
) -> int:
    """Queue a command or a shell, and attach to it until it ends; with `stays` False, only wait until it runs."""
    key = _key(escape)
    shell = (os.environ.get("SHELL") or "/bin/sh",)
    if command == ():
        raise InputError("COMMAND", "a program and its arguments, such as `kant run --gpus 1 -- python`")
    asked = wanted(shell if command is None else command, **options)
    if command is not None and max(asked.get("tasks", 1), asked.get("nodes", 1)) > 1:
        asked |= {"command": ("srun", "--label", *command), "slurm": True}
    if stays:
        asked["terminal"] = {"pty": is_terminal(), **window()}
    place = MachinePlace(home_of(home))
    done = place.submit(asked)
    (job,) = done.jobs
    if done.rejected:
        tell(f"job {job} is rejected: {printable(done.rejected)}")
        return REJECTED
    tell(f"job {job}")
    if stays:
        return _follow(place.client, job, key, 0, own=True)
    try:
        _until_it_runs(place.client, job)
    except KeyboardInterrupt:
        place.order("cancel", (job,))
        raise
    print(job)
    return 0


def attach_to(job: str, home: Path | None, escape: str) -> int:
    """Attach to a job until it ends; return its exit code, 0 after detaching."""
    return _follow(ServiceClient(home_of(home)), job, _key(escape), -SHOWN, own=False)


def shell_in(job: str, command: tuple[str, ...], home: Path | None, escape: str, node: str = "") -> int:
    """Run a command or a shell next to a job, on the machine of its command or on another; return the exit code."""
    key, pty, client = _key(escape), is_terminal(), ServiceClient(home_of(home))
    line = client.line(
        client.job(job, "shell"), pty=str(pty).lower(), term=os.environ.get("TERM", "") if pty else "",
        node=node, **window(),
    )  # fmt: skip
    line.send(b"O", json.dumps(command).encode())
    left = Conversation(line, pty, lambda reason: None, lambda: False, key).hold(begun=True)
    if left.refused:
        raise RefusedError(left.refused)
    if left.detached:
        return INTERRUPTED
    if left.code is None and left.signal is None:
        tell(f"job {job} has ended, or Kant no longer answers")
        return NOT_WELL
    return left.code if left.code is not None else SIGNALLED + int(left.signal or 0)


def tell(sentence: str) -> None:
    """Print one line for the user on standard error."""
    print(f"kant: {sentence}", file=sys.stderr, flush=True)


def _key(escape: str) -> bytes:
    if escape == "none":
        return b""
    if len(escape) != 1 or not escape.isascii() or not escape.isprintable():
        raise InputError("--escape", "one ASCII letter, or none", escape)
    return escape.encode()


def _follow(client: ServiceClient, job: str, key: bytes, offset: int, own: bool) -> int:
    """Attach to each run of a job until it ends; return its exit code. With `own`, Ctrl-C cancels the job while it
    waits.
    """
    pty = _has_terminal(client, job) and is_terminal()
    interrupts: list[float] = []

    def interrupt() -> bool:
        interrupts.append(time.monotonic())
        if len(interrupts) > 1 and interrupts[-1] - interrupts[-2] < AGAIN:
            client.post(client.job(job, "cancel"))
        else:
            client.post(client.job(job, "signal"), {"signal": "INT"})
        return True

    def waits(why: str) -> None:
        tell(f"job {job} waits: {printable(why)}")

    while True:
        line = client.line(client.job(job, "attach"), offset=offset, **window())
        try:
            left = Conversation(line, pty, waits, interrupt, key).hold()
        except KeyboardInterrupt:
            if own:
                client.post(client.job(job, "cancel"))
            raise
        if left.refused:
            raise RefusedError(left.refused)
        if left.detached:
            tell(f"job {job} continues to run: kant attach {job}")
            return 0
        ended = _ended(client, job, left.attempt)
        if ended is not None:
            if ended["phase"] != "finished":
                tell(f"job {job}: {ended['phase']}" + (f": {printable(ended['reason'])}" if ended["reason"] else ""))
            return code_of([ended])
        tell(f"job {job} waits again")
        offset = 0


def _has_terminal(client: ServiceClient, job: str) -> bool:
    said = client.get(client.job(job)).get("terminal")
    return said is not None and bool(said["pty"])


def _ended(client: ServiceClient, job: str, attempt: int) -> dict[str, Any] | None:
    """Return how a job ended with this run; None if it runs or will run again."""
    while True:
        found: dict[str, Any] = client.get(client.job(job, "outcome"), wait=LOOK)
        if found["over"]:
            return dict(found["jobs"][0])
        row = client.get(client.job(job))["job"]
        if row["phase"] not in ("running", "stopping") or row["attempt"] != attempt:
            return None


def _until_it_runs(client: ServiceClient, job: str) -> None:
    """Wait until a job has started, and print why it waits."""
    last_reason = ""
    while True:
        row = client.get(client.job(job))["job"]
        if row["phase"] == "running":
            return
        if row["phase"] in ("cancelled", "rejected", "failed", "finished"):
            raise RefusedError(f"job {job}: {row['phase']}" + (f": {row['reason']}" if row["reason"] else ""))
        if row["waits"] and row["waits"] != last_reason:
            last_reason = row["waits"]
            tell(f"job {job} waits: {printable(last_reason)}")
        time.sleep(0.2)
