"""Selectors of devices: expressions of the Common Expression Language (CEL), evaluated by Google's CEL library.

The library ends an expression after 10,000 loop iterations. The CPU time of the expressions of each namespace is
limited: a namespace that has used up its time waits, while others continue.

Source: k8s.io/dynamic-resource-allocation, cel/compile.go, for the variables of an expression; k8s.io/apiserver,
pkg/cel/library (quantity.go, semverlib.go), for the functions besides those of CEL.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from typing import Any

from kant.kube.objects import device_views as d
from kant.kube.objects.quantity import exact
from kant.kube.objects.refusals import SelectorError
from kant.model.errors import InputError, install_command

BUDGET = 2.0
"""Seconds of CPU time that the expressions of one namespace may use in a burst."""

REFILL = 0.02
"""Seconds of CPU time that the expressions of one namespace may use per second in the long run."""

MOST_KEPT = 4096
"""Maximum number of cached expressions. If it is exceeded, the whole cache is cleared."""

Facts = dict[str, Any]
"""The value of the variable `device` in expressions."""

_TOKEN = re.compile(
    r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|\bdevice\s*\.\s*(?:attributes|capacity)\s*\[(?!\s*\?)|[\[\]]'
)
_VERSION = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(?:-((?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(?:\.(?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*))?"
    r"(?:\+[0-9a-zA-Z.-]+)?"
)


_UNKNOWN = re.compile(
    r"undeclared reference to '([^']+)'|no matching overload for '(?![_@])([^']+' applied to '[^']+)'"
)
"""The library's messages about a function that it does not have, or not for these types."""


class DeviceSelectors:
    """Whether devices match expressions, cached until the devices change.

    `clock` returns the time and `cpu` the CPU time of this thread, both in seconds.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, cpu: Callable[[], float] = time.thread_time
    ) -> None:
        self.clock = clock
        self.cpu = cpu
        self.turned_away = False  # whether a namespace waits for more CPU time
        self._programs: dict[str, Any] = {}
        self._spent: dict[str, tuple[float, float]] = {}  # by namespace: CPU seconds used, as of which time
        self._known: dict[tuple[str, str], dict[str, bool]] = {}

    def keep(self, stamps: set[str]) -> None:
        """Forget all results except those for ResourceSlices of these versions."""
        self._known = {key: known for key, known in self._known.items() if key[0] in stamps}

    def matches(self, expression: str, stamp: str, name: str, facts: Callable[[], Facts], tenant: str) -> bool:
        """Whether an expression is true for the device `name` of a slice of version `stamp`. Raises SelectorError.

        An expression that fails on a device, such as for a missing attribute, counts as false. The CPU time counts for
        the namespace `tenant`; "": for none.
        """
        found = self._known.get((stamp, expression), {}).get(name)
        if found is None:
            self._admit(tenant)
            began = self.cpu()
            try:
                found = _holds(self._program(expression), facts)
                self._known.setdefault((stamp, expression), {})[name] = found
            finally:
                if tenant:
                    spent, at = self._spent.get(tenant, (0.0, self.clock()))
                    self._spent[tenant] = spent + self.cpu() - began, at
        return found

    def _admit(self, tenant: str) -> None:
        if tenant not in self._spent:
            return
        now = self.clock()
        spent, at = self._spent[tenant]
        spent = max(spent - REFILL * (now - at), 0.0)
        self._spent[tenant] = spent, now
        if spent > BUDGET:
            self.turned_away = True
            raise SelectorError(
                f"the device selectors of namespace {tenant} have used up their time ({BUDGET:g} s of CPU time)", True
            )

    def _program(self, expression: str) -> Any:
        program = self._programs.get(expression)
        if program is None:
            try:
                program = _environment().compile(with_defaults(expression))
            except ImportError:
                raise SelectorError(
                    f"device selectors need the library cel-expr-python ({install_command('dra')})"
                ) from None
            except (RuntimeError, ValueError) as error:
                raise SelectorError(f"the device selector {_short(expression)} cannot be read: {_why(error)}") from None
            if len(self._programs) >= MOST_KEPT:
                self._programs.clear()
                self._known.clear()
            self._programs[expression] = program
        return program


def _holds(program: Any, facts: Callable[[], Facts]) -> bool:
    """Return whether a program returns true. False also if it fails: by too many loops, or a missing attribute."""
    try:
        return program.eval(data={"device": facts()}).value() is True
    except (RuntimeError, ValueError, InputError):
        return False


def facts_of(device: d.Device, driver: str) -> Facts:
    """Return the variable `device` of expressions for a device of this driver."""
    attributes: dict[str, Facts] = {driver: {}}
    for name, attribute in device.attributes.items():
        domain, own = split_name(name, driver)
        attributes.setdefault(domain, {})[own] = value_of(attribute)
    capacity: dict[str, Facts] = {driver: {}}
    for name, amount in device.capacity.items():
        domain, own = split_name(name, driver)
        capacity.setdefault(domain, {})[own] = _quantity(str(amount.value))
    return {
        "driver": driver,
        "attributes": attributes,
        "capacity": capacity,
        "allowMultipleAllocations": device.allow_multiple_allocations,
    }


def split_name(name: str, driver: str) -> tuple[str, str]:
    """Split an attribute's name into its domain and the name within it. A plain name is in the driver's domain."""
    domain, slash, own = name.rpartition("/")
    return (domain, own) if slash else (driver, name)


def value_of(attribute: d.DeviceAttribute) -> Any:
    """Return the value of an attribute as a CEL value."""
    if attribute.version_value is not None:
        return _semver(attribute.version_value)
    if attribute.versions:
        return [_semver(one) for one in attribute.versions]
    plain = (attribute.int_value, attribute.bool_value, attribute.string_value)
    found = next((value for value in plain if value is not None), None)
    return found if found is not None else list(attribute.ints or attribute.bools or attribute.strings)


def with_defaults(expression: str) -> str:
    """Return the expression changed so that `device.attributes[X]` is an empty map if a device has nothing in domain X.

    As in Kubernetes, this applies to attributes and to capacity. Quoted text does not change.
    """
    written: list[str] = []
    open_brackets: list[bool] = []
    at = 0
    for token in _TOKEN.finditer(expression):
        written.append(expression[at : token.start()])
        at, text = token.end(), token[0]
        if text == "]":
            written.append("].orValue({}))" if open_brackets and open_brackets.pop() else "]")
        elif text[-1] == "[":
            is_map = len(text) > 1
            open_brackets.append(is_map)
            written.append(f"dyn({text}?" if is_map else text)
        else:
            written.append(text)
    return "".join([*written, expression[at:]])


# --- quantities and versions -----------------------------------------------------------------------------------------
# Both are maps with one key, which expressions that passed the API server's checks cannot access.

QUANTITY, SEMVER = "kubernetes.Quantity", "kubernetes.Semver"


def _quantity(text: str) -> Facts:
    sign = -1 if text.startswith("-") else 1
    number = exact(text.removeprefix("-"), "quantity") * sign
    return {QUANTITY: f"{number.numerator}/{number.denominator}"}


def _amount(value: Facts) -> Fraction:
    return Fraction(value[QUANTITY])


def _semver(text: str) -> Facts:
    if not _VERSION.fullmatch(text):
        raise ValueError(f"{text!r} is no semantic version")
    return {SEMVER: text}


def _rank(value: Facts) -> tuple[Any, ...]:
    """Return a sort key for versions, in the order of semver.org; what follows a + is ignored."""
    found = _VERSION.fullmatch(value[SEMVER])
    assert found is not None
    parts = (found[4] or "").split(".") if found[4] else []
    before = [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts]
    return int(found[1]), int(found[2]), int(found[3]), not before, before


def _compare(one: Facts, other: Facts) -> int:
    if QUANTITY in one:
        left, right = _amount(one), _amount(other)
        return (left > right) - (left < right)
    first, second = _rank(one), _rank(other)
    return (first > second) - (first < second)


def _is(read: Callable[[str], Facts], text: str) -> bool:
    try:
        read(text)
    except (InputError, ValueError):
        return False
    return True


def _sum(one: Facts, other: Facts | int, sign: int) -> Facts:
    number = _amount(one) + sign * (Fraction(other) if isinstance(other, int) else _amount(other))
    return {QUANTITY: f"{number.numerator}/{number.denominator}"}


@cache
def _environment() -> Any:
    from cel_expr_python import cel
    from cel_expr_python.ext import ext_bindings, ext_optional, ext_strings

    kinds = cel.Type
    thing = kinds.Map(kinds.STRING, kinds.DYN)

    def function(name: str, result: Any, *overloads: tuple[Callable[..., Any], list[Any]], member: bool = False) -> Any:
        return cel.FunctionDecl(
            name,
            [
                cel.Overload(f"{name}_{number}", return_type=result, parameters=own, is_member=member, impl=does)
                for number, (does, own) in enumerate(overloads)
            ],
        )

    def of_two(name: str, result: Any, does: Callable[..., Any]) -> Any:
        return function(name, result, (does, [thing, thing]), member=True)

    def of_one(name: str, result: Any, does: Callable[..., Any]) -> Any:
        return function(name, result, (does, [thing]), member=True)

    text = [kinds.STRING]
    functions = [
        function("quantity", thing, (_quantity, text)),
        function("isQuantity", kinds.BOOL, (lambda one: _is(_quantity, one), text)),
        function("semver", thing, (_semver, text)),
        function("isSemver", kinds.BOOL, (lambda one: _is(_semver, one), text)),
        of_two("compareTo", kinds.INT, _compare),
        of_two("isGreaterThan", kinds.BOOL, lambda one, other: _compare(one, other) > 0),
        of_two("isLessThan", kinds.BOOL, lambda one, other: _compare(one, other) < 0),
        of_one("sign", kinds.INT, lambda one: (_amount(one) > 0) - (_amount(one) < 0)),
        of_one("isInteger", kinds.BOOL, lambda one: _amount(one).denominator == 1),
        of_one("asInteger", kinds.INT, lambda one: int(_amount(one))),
        of_one("asApproximateFloat", kinds.DOUBLE, lambda one: float(_amount(one))),
        of_one("major", kinds.INT, lambda one: _rank(one)[0]),
        of_one("minor", kinds.INT, lambda one: _rank(one)[1]),
        of_one("patch", kinds.INT, lambda one: _rank(one)[2]),
        *(
            function(
                name,
                thing,
                (lambda one, other, sign=sign: _sum(one, other, sign), [thing, thing]),
                (lambda one, other, sign=sign: _sum(one, other, sign), [thing, kinds.INT]),
                member=True,
            )
            for name, sign in (("add", 1), ("sub", -1))
        ),
    ]
    extensions = [ext_strings.ExtStrings(), ext_bindings.ExtBindings(), ext_optional.ExtOptional()]
    return cel.NewEnv(variables={"device": kinds.DYN}, extensions=extensions, functions=functions)


def _why(error: Exception) -> str:
    """Return, as text, which function of an expression Kant cannot evaluate; else the library's message."""
    text = str(error).strip().splitlines()[0]
    unknown = _UNKNOWN.search(text)
    if unknown is None:
        return text
    return "Kant does not evaluate " + (unknown[1] or unknown[2]).replace("' applied to '", " of ")


def _short(expression: str) -> str:
    return repr(expression if len(expression) <= 60 else expression[:57] + "...")
