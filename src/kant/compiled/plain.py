"""Kernels as plain Python: the reference for compiled kernels, and enough for a single query on a small cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

F = TypeVar("F", bound=Callable[..., object])


def compiled(function: F) -> F:
    """Return the function itself."""
    return function


compiled_at_once = compiled


def inlined(function: F) -> F:
    """Return the function itself."""
    return function


merged = inlined


def is_ready(kernel: Callable[..., object], *args: object) -> bool:
    """Return True: nothing has to be compiled."""
    return True


@contextmanager
def as_written() -> Iterator[None]:
    """Do nothing: kernels always run as plain Python here."""
    yield


compiling_ahead = as_written
