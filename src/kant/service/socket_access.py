"""Access to Kant: who may open its Unix socket, and the TLS certificate of its address."""

from __future__ import annotations

import grp
import os
import socket
import ssl
import stat
import struct
from dataclasses import dataclass
from pathlib import Path

from kant.model.errors import InputError


@dataclass(frozen=True, slots=True)
class Certificate:
    """PEM files: the certificate with its intermediate certificates, and its private key."""

    chain: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        """Return a server-side TLS context. Raises InputError."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.load(context)
        return context

    def load(self, context: ssl.SSLContext) -> None:
        """Load the current files for new connections. If they are invalid, keep the old ones and raise InputError."""
        for option, path in (("--tls-cert", self.chain), ("--tls-key", self.key)):
            try:
                path.read_bytes()
            except OSError as error:
                raise InputError(f"{option} {path}", f"a file that can be read ({error.strerror})") from None
        try:
            context.load_cert_chain(self.chain, self.key, password=b"")
        except (ssl.SSLError, ValueError) as error:
            what = "a certificate in PEM and its private key without a password"
            raise InputError(f"--tls-cert {self.chain} and --tls-key {self.key}", f"{what} ({error})") from None


def check_users(group: str, home: Path) -> int:
    """Return the id of the group whose members may open the socket of `home`. Raises InputError if that is unsafe.

    It is unsafe if a user can rename a folder above the home or a file in it, and so make root run anything.
    """
    if os.geteuid() != 0:
        raise InputError("--users", "Kant as root: only root can run jobs as other users")
    try:
        found = grp.getgrnam(group).gr_gid
    except KeyError:
        raise InputError("--users", "a group of this machine", group) from None
    for folder in (home, *home.resolve().parents):
        about = folder.stat()
        others = about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if about.st_uid != 0 or (others and not about.st_mode & stat.S_ISVTX) or (others and folder == home):
            what = "a folder that only root can change, like all above it (such as /var/lib/kant), for --users"
            raise InputError(f"--home {home}", what, f"{folder} of mode {stat.S_IMODE(about.st_mode):o}")
    return found


def open_to(group: int, home: Path, path: Path) -> None:
    """Let the members of a group connect to the socket and traverse the home; the home's files stay private."""
    os.chown(path, 0, group)
    path.chmod(0o660)
    home.chmod(0o711)


def peer(own: socket.socket) -> tuple[int, int]:
    """Return the process id and the user id of the other end of a Unix socket."""
    pid, uid, _ = struct.unpack("3i", own.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid
