"""The options of a job as parameters of a verb: `kant submit`, `run` and `alloc` take them from `JobRequest`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

from cyclopts import Parameter

from kant.cli.inputs import whole
from kant.model.job_request import OPTIONS, OptionField

F = TypeVar("F", bound=Callable[..., int])
TYPES = {"number": float, "whole": int, "flag": bool, "terminal": bool, "folder": Path}


def job_options(*names: str, **defaults: Any) -> Callable[[F], F]:
    """Add these job options (all if no names are given) before a verb's own; the verb gets them as `**options`.
    `defaults` replace the defaults of `kant submit`.
    """

    def decorated(verb: F) -> F:
        own = inspect.signature(verb)
        before = [each for each in own.parameters.values() if each.kind is each.VAR_POSITIONAL]
        after = [each for each in own.parameters.values() if each.kind is each.KEYWORD_ONLY]
        options = [_parameter(name, OPTIONS[name], defaults) for name in names or OPTIONS]
        verb.__signature__ = own.replace(parameters=[*before, *options, *after])  # type: ignore[attr-defined]
        verb.__annotations__ |= {each.name: each.annotation for each in options}
        del verb.__annotations__["options"]
        return verb

    return decorated


def _parameter(name: str, said: OptionField, defaults: dict[str, Any]) -> inspect.Parameter:
    option, default = said.option, defaults.get(name, said.default)
    kind: Any = tuple[str, ...] if option.many else TYPES.get(option.reads, str)
    how: dict[str, Any] = {"help": option.help}
    if len(said.flags) > 1:
        how["name"] = list(said.flags)
    if option.reads == "whole":
        how["converter"] = whole
    if option.many or (said.is_flag and default is False):
        how["negative"] = ""
    kind = kind if default is not None else kind | None
    annotation: Any = Annotated[kind, Parameter(**how)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
