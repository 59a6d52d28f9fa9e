"""The serialised `JobRequest`: a msgspec Struct whose JSON the API accepts, with its nested objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from msgspec import NODEFAULT, Meta, Struct, defstruct

from kant.model.elastic import Contract  # noqa: F401 - msgspec looks it up by its name
from kant.model.job_request import JobRequest, Limit

Text = Annotated[str, Meta(max_length=256)]


class StageOf(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The workflow stage that a job runs, and its place in the schedule if the workflow gives all durations.

    `critical_path` has the stages of the critical path (only the first and last ones of a long path), `length_s` is its
    length, and `slack_s` is the slack of this stage (-1: unknown).
    """

    workflow: Text
    stage: Text
    critical_path: Annotated[tuple[Text, ...], Meta(max_length=32)] = ()
    length_s: Annotated[float, Meta(ge=-1, le=1e12)] = -1.0
    slack_s: Annotated[float, Meta(ge=-1, le=1e12)] = -1.0


class Terminal(Struct, frozen=True, forbid_unknown_fields=True):
    """Lets clients write to a run by a pipe, or a terminal (`pty`) of `rows` and `columns`, or of a client's window."""

    pty: bool = True
    rows: Annotated[int, Meta(ge=1, le=9999)] = 24
    columns: Annotated[int, Meta(ge=1, le=9999)] = 80


Happening = Literal["submitted", "started", "requeued", "finished", "failed", "cancelled", "rejected"]
OVERS: tuple[Happening, ...] = ("finished", "failed", "cancelled", "rejected")


class Notice(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A notification about a job: an address that gets it as JSON (`webhook`), or a `command` that reads it from
    standard input. `on`: the events. `anywhere`: also on this machine and its networks; Kant sets it, for operators.
    """

    on: Annotated[tuple[Happening, ...], Meta(min_length=1, max_length=7)] = OVERS
    webhook: Annotated[str, Meta(max_length=2048)] = ""
    command: Annotated[tuple[str, ...], Meta(max_length=256)] = ()
    anywhere: bool = False


def _typed(hint: Any) -> Any:
    """Convert a type hint of `JobRequest` to one that msgspec reads."""
    if hasattr(hint, "__metadata__"):
        limits = [each for each in hint.__metadata__ if isinstance(each, Limit)]
        found = _typed(hint.__origin__)
        for limit in limits:
            said = {name: value for name, value in limit._asdict().items() if value is not None}
            found = Annotated[found, Meta(**said)]
        return found
    origin, parts = get_origin(hint), tuple(map(_typed, get_args(hint)))
    if origin is Union:
        return Union[parts]  # noqa: UP007 - of a tuple
    return origin[parts] if origin is not None else hint


if TYPE_CHECKING:
    Submission = JobRequest
else:
    Submission = defstruct(
        "Submission",
        [
            (name, _typed(hint), getattr(JobRequest, name, NODEFAULT))
            for name, hint in JobRequest.__annotations__.items()
        ],
        module=__name__, namespace={"__doc__": JobRequest.__doc__}, frozen=True, forbid_unknown_fields=True,
        omit_defaults=True, kw_only=True,
    )  # fmt: skip
