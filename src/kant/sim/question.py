"""A what-if question, in the words of `kant whatif`."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from kant.model.errors import InputError

Words = Annotated[str, Meta(min_length=1, max_length=1000)]
Several = Annotated[tuple[Words, ...], Meta(max_length=100)]


class Question(Struct, frozen=True, forbid_unknown_fields=True):
    """The changes, written as in the options of `kant whatif`; at least one.

    `submit`: jobs such as `gpus=8,time=4h`. `drain`: `NAME[@FROM[..UNTIL]]`; with `evict` jobs that run there are
    stopped. `quota`: `QUEUE:gpu=+64`. `nodes`: `10` or `10xNAME`. `cancel`: jobs that are cancelled at once. `profile`:
    a built-in one, "": unchanged. `until`: the end of both futures, "": none.
    """

    submit: Several = ()
    drain: Several = ()
    evict: bool = False
    quota: Several = ()
    nodes: Several = ()
    profile: Annotated[str, Meta(max_length=100)] = ""
    until: Annotated[str, Meta(max_length=100)] = ""
    cancel: Several = ()

    def check(self) -> None:
        """Raise InputError if no change is given, or an option lacks the one that it needs."""
        if not (self.submit or self.drain or self.quota or self.nodes or self.profile or self.cancel):
            raise InputError("whatif", "at least one of --submit, --drain, --quota, --nodes, --cancel and --profile")
        if self.evict and not self.drain:
            raise InputError("--evict", "a --drain with it")
