"""The order of service: two functions around questions, which a cycle answers from its trial (`tries.py`), and a
simulated run from columns, in compiled code (`sim/tries.py`)."""

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
    """Build the function that says whether a job can start now, around questions about `view`.

    `options` returns its shapes, in order (None: only its own). `in_quota`, `fits` and `frees_capacity` say of one of
    them whether the quota has room (None: always), whether there is a place, and whether jobs were evicted for it and
    it now has one (None: never). `view` keeps the place, or the reasons.
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
    """Build the function that tries the first jobs of the awake buckets, best first, around questions about `view`.

    `first` and `following` return an entry (0: no job is left), row and shape. `is_held`: whether a blocked job of
    higher priority holds the job (None: never); `fits_beside`: whether it then has a place that none of these can use.
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
