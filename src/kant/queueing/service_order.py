"""The order of service: two functions built from callbacks. The callbacks of a cycle use its trial (`tries.py`), those
of a simulated run use tables, in compiled code (`sim/tries.py`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

Nominate = Callable[[Any, int, Any], bool]
InOrder = Callable[[Any], None]


def make_nominate(
    options: Callable[[Any, int, Any], Iterable[Any]] | None, in_quota: Callable[[Any, int, Any], bool] | None,
    fits: Callable[[Any, int, Any], bool], frees_capacity: Callable[[Any, int, Any], bool] | None,
    kernel: Callable[[Any], Any],
) -> Nominate:  # fmt: skip
    """Build the function that returns whether a job can start now, from callbacks that take `view`.

    `options` returns the shapes to try, in order (None: only the job's own). For one of them, `in_quota` returns
    whether the quota has room (None: always), `fits` whether it can be placed, and `frees_capacity` whether jobs were
    evicted so that it can be placed (None: never). `view` keeps the placement, or the reasons against it.
    """

    def nominate(view: Any, row: int, shape: Any) -> bool:
        tried = (shape,) if options is None else options(view, row, shape)
        for option in tried:
            if (in_quota is None or in_quota(view, row, option)) and fits(view, row, option):
                return True
        if frees_capacity is not None:
            for option in tried:
                if frees_capacity(view, row, option):
                    return True
        return False

    return kernel(nominate)  # type: ignore[no-any-return]


def make_in_order(
    first: Callable[[Any], tuple[int, int, Any]], following: Callable[[Any], tuple[int, int, Any]],
    is_held: Callable[[Any, int, Any], bool] | None, fits_beside: Callable[[Any, int, Any], bool] | None,
    nominate: Nominate, start: Callable[[Any, int, int, Any], None], step_aside: Callable[[Any, int, int, Any], None],
    sleep: Callable[[Any, int, int, Any], None], kernel: Callable[[Any], Any],
) -> InOrder:  # fmt: skip
    """Build the function that tries the first jobs of the awake buckets, best first, from callbacks that take `view`.

    `first` and `following` return an entry (0: no job is left), row and shape. `is_held`: whether a blocked job of
    higher priority holds the job (None: never); `fits_beside`: whether it fits on nodes that no such job can ever use.
    A job that steps aside is tried again in the next cycle; one that sleeps, once a change may help it.
    """

    def in_order(view: Any) -> None:
        entry, row, shape = first(view)
        while entry > 0:
            if is_held is not None and is_held(view, row, shape):
                if fits_beside is not None and fits_beside(view, row, shape):
                    start(view, entry, row, shape)
                else:
                    step_aside(view, entry, row, shape)
            elif nominate(view, row, shape):
                start(view, entry, row, shape)
            else:
                sleep(view, entry, row, shape)
            entry, row, shape = following(view)

    return kernel(in_order)  # type: ignore[no-any-return]
