"""The JSON file of a program: capacity, tiers, buffers and steps."""

from __future__ import annotations

from pathlib import Path

from kant.model.errors import InputError
from kant.optimize.instance_file import read_json
from kant.optimize.residency.program import Program


def read_program(path: Path) -> Program:
    """Read the program of a file. Raises InputError with the file, the field, and the expected value."""
    try:
        return read_json(path, Program)
    except InputError as error:
        if error.where.startswith(str(path)):
            raise
        raise InputError(f"{path}, {error.where}", error.expected, error.got) from None
