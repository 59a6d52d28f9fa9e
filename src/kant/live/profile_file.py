"""Reads a profile by its name, or from a file."""

from __future__ import annotations

from os import PathLike, fspath
from pathlib import Path

from kant.model.errors import InputError
from kant.scheduler.profile import Profile, builtin_profile, builtin_texts, parse_profile


def read_profile(spec: str | PathLike[str], where: str) -> Profile:
    """Return a built-in profile by name, or a profile from a TOML file. Raises InputError, which names `where`."""
    name, known = fspath(spec), builtin_texts()
    if name in known:
        return builtin_profile(name)
    path = Path(name)
    if not path.is_file():
        raise InputError(where, f"a TOML file or one of {', '.join(known)}", name)
    from kant.toml_file import read_text  # most profiles are built in

    return parse_profile(read_text(path), str(path))
