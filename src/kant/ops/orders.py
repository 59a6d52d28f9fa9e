"""Orders: the changes that can be planned, several together. The fields of each order say what is to change."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from kant.model.errors import InputError
from kant.ops.past_question import MOST
from kant.ops.text import one_line

Word = Annotated[str, Meta(min_length=1, max_length=200)]
Text = Annotated[str, Meta(max_length=200)]
Whole = Annotated[int, Meta(ge=-(10**9), le=10**9)]


class _Order(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="op"):
    pass


class Submit(_Order, frozen=True, tag="submit"):
    """Queue a job of `pods` pods with `gpus` GPUs each, for at most `time` (such as 2h).

    `command` is what it runs, if jobs of the world run commands. Without `preemptible` nobody may stop it.
    """

    gpus: Annotated[int, Meta(ge=0, le=10**6)]
    time: Word
    pods: Annotated[int, Meta(ge=1, le=10**6)] = 1
    queue: Word = "default"
    name: Text = ""
    priority: Whole = 0
    preemptible: bool = True
    within: Literal["", "node", "hbd", "leaf", "spine", "superspine"] = ""
    command: Annotated[tuple[Annotated[str, Meta(max_length=4000)], ...], Meta(max_length=200)] = ()


class Cancel(_Order, frozen=True, tag="cancel"):
    """Cancel a waiting or running job."""

    job: Word


class Hold(_Order, frozen=True, tag="hold"):
    """Keep a waiting job from starting."""

    job: Word


class Release(_Order, frozen=True, tag="release"):
    """Release a held job."""

    job: Word


class Priority(_Order, frozen=True, tag="priority"):
    """Change the priority of a waiting job: jobs of higher priority start first."""

    job: Word
    value: Whole


class Preempt(_Order, frozen=True, tag="preempt"):
    """Stop the run of a job; the job waits again."""

    job: Word


class Quota(_Order, frozen=True, tag="quota"):
    """Change the nominal quota of a queue in GPUs, on the nodes of `model` ("": of all models)."""

    queue: Word
    gpus: Annotated[float, Meta(ge=0, le=10**9)]
    model: Text = ""


class Drain(_Order, frozen=True, tag="drain"):
    """Start nothing new on a node; with `evict` the jobs on it are stopped and wait again."""

    node: Word
    evict: bool = False


class Resume(_Order, frozen=True, tag="resume"):
    """Let a drained node accept jobs again."""

    node: Word


class Reserve(_Order, frozen=True, tag="reserve"):
    """Book GPUs close to each other for `time`; `start` counts from now (such as 1h)."""

    name: Word
    gpus: Annotated[int, Meta(ge=1, le=10**6)]
    time: Word
    start: Word = "0s"
    within: Literal["", "hbd", "leaf", "spine", "superspine"] = ""


class Unreserve(_Order, frozen=True, tag="unreserve"):
    """Cancel a reservation."""

    name: Word


class Defragment(_Order, frozen=True, tag="defragment"):
    """Move at most `moves` running jobs together, so that whole nodes become idle."""

    moves: Annotated[int, Meta(ge=1, le=1000)] = 10


Order = (
    Submit | Cancel | Hold | Release | Priority | Preempt | Quota | Drain | Resume | Reserve | Unreserve | Defragment
)
KINDS: tuple[str, ...] = tuple(str(kind.__struct_config__.tag) for kind in Order.__args__)


def kind_of(order: Order) -> str:
    """The name of the kind of an order, such as `cancel`."""
    return str(order.__struct_config__.tag)


def parse_orders(given: Any) -> tuple[Order, ...]:
    """Parse the orders of a plan from JSON-like objects. Raises InputError that names the order and its field."""
    if not isinstance(given, list | tuple) or not 1 <= len(given) <= MOST:
        raise InputError("orders", f"a list of 1 to {MOST} orders", given)
    found = []
    for number, each in enumerate(given, start=1):
        if isinstance(each, _Order):
            each = msgspec.to_builtins(each)
        try:
            found.append(msgspec.convert(each, Order))
        except msgspec.ValidationError as error:
            raise InputError(
                f"order {number}", f"one of {', '.join(KINDS)} with its fields: {one_line(str(error))}"
            ) from None
    return tuple(found)


def order_schema() -> dict[str, Any]:
    """The JSON schema of one order, for tools that plan."""
    (found,), parts = msgspec.json.schema_components([Order], ref_template="#/$defs/{name}")

    def inlined(value: Any) -> Any:
        if isinstance(value, dict):
            if "$ref" in value:
                return inlined(parts[value["$ref"].rpartition("/")[2]])
            return {key: inlined(each) for key, each in value.items() if key not in ("title", "discriminator")}
        return [inlined(each) for each in value] if isinstance(value, list) else value

    schema: dict[str, Any] = inlined(found)
    return schema


def to_json(orders: tuple[Order, ...]) -> list[dict[str, Any]]:
    """Orders as JSON-like objects."""
    found: list[dict[str, Any]] = msgspec.to_builtins(orders)
    return list(found)


def sentence(order: Order) -> str:
    """Return what an order does, as a sentence."""
    match order:
        case Submit():
            return f"submit {order.pods} x {order.gpus} GPUs for {order.time} to queue {order.queue}"
        case Priority():
            return f"job {order.job} gets priority {order.value}"
        case Preempt():
            return f"job {order.job} is stopped and waits again"
        case Quota():
            return f"queue {order.queue} gets a quota of {order.gpus:g} GPUs" + f" of {order.model}" * bool(order.model)
        case Drain():
            return f"node {order.node} accepts no new jobs" + ", and its jobs are stopped" * order.evict
        case Resume():
            return f"node {order.node} accepts jobs again"
        case Reserve():
            return f"{order.gpus} GPUs are booked as {order.name} for {order.time}, in {order.start}"
        case Unreserve():
            return f"reservation {order.name} is cancelled"
        case Defragment():
            return f"at most {order.moves} running jobs move together"
        case _:
            return f"{kind_of(order)} job {order.job}"
