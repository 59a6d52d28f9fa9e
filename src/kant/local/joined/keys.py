"""The certificates of Kant and of its joined machines, and the token with the part that a machine needs.

There are two certificates. Each side accepts only the other's certificate, so names and dates in it do not matter. Both
are created once, by openssl, because Python's `ssl` cannot create them.
"""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
from pathlib import Path

from kant.model.errors import InputError

PREFIX = "kant_join_"
PORT = 5269
NO_DATES = 0x200000  # X509_V_FLAG_NO_CHECK_TIME: pinned certificates do not expire
MAKE = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "36500")
OURS, THEIRS, TOKEN = "leader.pem", "machine.pem", "token"


def make_keys(folder: Path) -> None:
    """Create both certificates and the token if they do not exist. Raises InputError."""
    if (folder / TOKEN).exists():
        return
    if shutil.which("openssl") is None:
        raise InputError("--join-listen", "openssl in the PATH, which creates the certificates")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    made = []
    for name in (OURS, THEIRS):
        path = folder / name
        command = ["openssl", *MAKE, "-subj", f"/CN=kant-{path.stem}", "-keyout", f"{path}.key", "-out", f"{path}.crt"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise InputError("openssl", "a certificate", done.stderr.strip()[-200:])
        parts = [Path(f"{path}.{kind}").read_text(encoding="ascii") for kind in ("crt", "key")]
        _write(path, "".join(parts))
        for kind in ("crt", "key"):
            Path(f"{path}.{kind}").unlink()
        made.append(parts)
    _write(folder / TOKEN, PREFIX + ".".join(_bare(part) for part in (made[0][0], *made[1])) + "\n")


def take_token(token: str, folder: Path) -> None:
    """Store the certificates and the key that a token contains in a folder on this machine. Raises InputError."""
    parts = token.strip().removeprefix(PREFIX).split(".")
    if not token.startswith(PREFIX) or len(parts) != 3:
        raise InputError("the token", "the output of `kant token join`", token[:20])
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    kinds = ("CERTIFICATE", "CERTIFICATE", "PRIVATE KEY")
    leader, own, key = (
        f"-----BEGIN {kind}-----\n{part}\n-----END {kind}-----\n" for kind, part in zip(kinds, parts, strict=True)
    )
    _write(folder / OURS, leader)
    _write(folder / THEIRS, own + key)


def context(folder: Path, *, is_leader: bool) -> ssl.SSLContext:
    """Return a TLS 1.3 context in which each side accepts only the other's certificate. Raises InputError."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_leader else ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    made.check_hostname = False  # the certificate itself is pinned
    made.verify_mode = ssl.CERT_REQUIRED
    made.verify_flags |= NO_DATES
    own, other = (OURS, THEIRS) if is_leader else (THEIRS, OURS)
    try:
        made.load_cert_chain(folder / own)
        made.load_verify_locations(folder / other)
    except (OSError, ssl.SSLError) as error:
        raise InputError(str(folder), f"certificates from the output of `kant token join` ({error})") from None
    return made


def address(text: str, where: str) -> tuple[str, int]:
    """Parse a text such as gpu1:5269 into host and port. Raises InputError."""
    host, colon, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    if not colon:
        host, port = text, str(PORT)
    if not host or not port.isdigit() or not 0 <= int(port) < 1 << 16:
        raise InputError(where, f"an address such as gpu1 or 10.0.0.1:{PORT}", text)
    return host.strip("[]"), int(port)


def _bare(pem: str) -> str:
    return "".join(line for line in pem.split("\n") if line and not line.startswith("-----"))


def _write(path: Path, text: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(file, "w", encoding="ascii") as out:
        out.write(text)
