"""The one door to Numba: `@compiled` for a kernel, `@inlined` for a function that kernels call.

A kernel is a plain Python function over arrays. With `NUMBA_DISABLE_JIT=1` it runs as written, and so serves as
the oracle that the compiled one is tested against. Compiled code is kept on disk, under a key made of the text of
every module that holds kernels: Numba itself notices a change only in the file of the kernel it compiles, not in
the files of the functions that it calls.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypeVar, cast

import numba
from numba.extending import register_jitable

F = TypeVar("F", bound=Callable[..., object])

_KERNEL_ROOMS = ("cluster", "placement", "queueing", "metrics", "sim")


@cache
def _keeps_code() -> bool:
    """Point Numba at a folder that holds only code compiled from this very text; False where none can be written."""
    home = Path(__file__).parent
    digest = hashlib.blake2b(numba.__version__.encode(), digest_size=8)
    for room in _KERNEL_ROOMS:
        for file in sorted((home / room).rglob("*.py")):
            text = file.read_bytes()
            if b"kant.compiled" in text:
                digest.update(text)
    given = os.environ.get("KANT_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME")
    own = Path(tempfile.gettempdir()) / f"kant-{os.getuid()}"
    for base in (Path(given) if given else Path.home() / ".cache", own):
        folder = base / "kant" / "kernels" / digest.hexdigest()
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError:
            continue
        numba.config.CACHE_DIR = str(folder)  # type: ignore[attr-defined]
        return True
    return False


def compiled(function: F) -> F:
    """Compile `function` on first call for the types it is called with, and keep the result on disk.

    The result is not kept where the function closes over one from outside Kant, whose text the key does not cover.
    """
    parts = [cell.cell_contents for cell in function.__closure__ or ()]
    own = all(getattr(part, "__module__", "kant.").startswith("kant.") for part in parts)
    return cast(F, numba.njit(cache=own and _keeps_code())(function))


def inlined(function: F) -> F:
    """Let kernels call `function`; called from Python it stays plain Python.

    A kernel made by a factory may close over such a function and still be found again on disk, because a plain
    function has a stable name where a compiled one has not.
    """
    plain: F = register_jitable(function)
    return plain
