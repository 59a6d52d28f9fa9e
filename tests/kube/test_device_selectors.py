"""Selectors of devices: what expressions see, as in Kubernetes, and who pays for their time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kant.kube.objects import device_views as d
from kant.kube.translate.device_selectors import (
    BUDGET,
    MOST_KEPT,
    DeviceSelectors,
    SelectorError,
    facts_of,
    with_defaults,
)

DRIVER = "gpu.example.com"
DEVICE = d.Device(
    "gpu-0",
    {
        "model": d.DeviceAttribute(string_value="H100"),
        "index": d.DeviceAttribute(int_value=3),
        "healthy": d.DeviceAttribute(bool_value=True),
        "firmware": d.DeviceAttribute(version_value="1.10.0-rc.2+build"),
        "other.com/zone": d.DeviceAttribute(string_value="[z]"),
        "links": d.DeviceAttribute(strings=("a", "b")),
    },
    {"memory": d.AmountOf("80Gi"), "parts": d.AmountOf(7)},
)
OWN = f'device.attributes["{DRIVER}"]'
HOLDS = [
    f'device.driver == "{DRIVER}" && !device.allowMultipleAllocations',
    f'{OWN}.model.startsWith("H") && {OWN}.model.lowerAscii() == "h100" && {OWN}.model.matches("^H[0-9]+$")',
    f"{OWN}.index in [1, 2, 3] && {OWN}.healthy && {OWN}.index % 2 == 1",
    f'device.capacity["{DRIVER}"].memory.compareTo(quantity("81920Mi")) == 0',
    f'device.capacity["{DRIVER}"].memory.isGreaterThan(quantity("40Gi"))',
    f'device.capacity["{DRIVER}"].parts.asInteger() == 7',
    'quantity("1k") == quantity("1000") && quantity("1Gi").sub(quantity("1Gi")).sign() == 0 && !isQuantity("3x")',
    f'{OWN}.firmware.isLessThan(semver("1.10.0")) && {OWN}.firmware.compareTo(semver("1.9.9")) > 0',
    f'{OWN}.firmware.compareTo(semver("1.10.0-rc.10")) < 0 && {OWN}.firmware.minor() == 10 && !isSemver("v1")',
    f'cel.bind(own, {OWN}, own.model == "H100" && own.index == 3)',
    f'{OWN}.?nothing.orValue("x") == "x" && device.attributes[?"no.com"].?model.orValue("y") == "y"',
    '!has(device.attributes["no.com"].model) && !("model" in device.attributes["no.com"])',
    '!("no.com" in device.attributes) && device.attributes["other.com"].zone == "[z]"',
    f'{OWN}.links.exists(one, one == "b")',
    'device.attributes["a]b"].size() == 0 && \'device.attributes["x"]\' != ""',
]
UNKNOWN = {
    'url("https://x/").getHost() == "x"': "url",
    'ip("10.0.0.1").family() == 4': "ip",
    'cidr("10.0.0.0/8").containsIP("10.0.0.1")': "cidr",
    f'{OWN}.model.find("[0-9]+") == "100"': "find",
    'format.dns1123Label().validate("x").hasValue()': "format",
    'semver("v1.0", true).major() == 1': "semver",
    "[1, 2].sum() == 3": "sum",
    "sets.contains([1], [1])": "sets",
    "[1, 2].indexOf(2) == 1": "indexOf of (list(int), int)",
}
"""What the API server takes, and Kant does not evaluate."""
FAILS = [f'{OWN}.nothing == "x"', f"{OWN}.index", f"{OWN}.model == 3", 'device.capacity["x"].memory == quantity("1")']


def holds(expression: str, selectors: DeviceSelectors | None = None, tenant: str = "") -> bool:
    own = selectors or DeviceSelectors()
    return own.matches(expression, "1", DEVICE.name, lambda: facts_of(DEVICE, DRIVER), tenant)


@pytest.mark.parametrize("expression", HOLDS)
def test_expressions_see_of_a_device_what_they_see_in_kubernetes(expression: str) -> None:
    assert holds(expression)


@pytest.mark.parametrize("expression", FAILS)
def test_a_device_at_which_an_expression_fails_does_not_match(expression: str) -> None:
    assert not holds(expression)


def test_expressions_that_cannot_be_read_say_so_and_none_loops_for_long() -> None:
    with pytest.raises(SelectorError, match=r"the device selector 'device.driver ==' cannot be read"):
        holds("device.driver ==")
    for call, name in UNKNOWN.items():
        with pytest.raises(SelectorError) as error:
            holds(call)
        assert str(error.value).endswith(f"cannot be read: Kant does not evaluate {name}")
    many = f"[{','.join('1' * 100)}]"
    assert not holds(f"{many}.all(x, {many}.all(y, {many}.all(z, x + y + z > 0)))")  # a million times, and all true


def test_a_namespace_that_has_used_up_its_time_waits_and_no_other() -> None:
    now, cpu = [0.0], [0.0]

    def work() -> float:
        cpu[0] += 0.6 * BUDGET
        return cpu[0]

    selectors = DeviceSelectors(lambda: now[0], work)
    for number in range(2):
        assert holds(f"{number} < 9", selectors, "greedy")
    with pytest.raises(SelectorError, match="namespace greedy have used up their time") as error:
        holds("2 < 9", selectors, "greedy")
    assert error.value.later and selectors.turned_away
    assert holds("0 < 9", selectors, "greedy")  # known
    assert holds("2 < 9", selectors, "other") and holds("3 < 9", selectors)
    now[0] = 3600.0
    assert holds("4 < 9", selectors, "greedy")


def test_what_cannot_be_read_costs_its_namespace_time_too() -> None:
    cpu = [0.0]

    def work() -> float:
        cpu[0] += 0.6 * BUDGET
        return cpu[0]

    selectors = DeviceSelectors(lambda: 0.0, work)
    for later in (False, False, True):
        with pytest.raises(SelectorError) as refusal:
            selectors.matches("device.nonsense(", "slice", "gpu", dict, "team")
        assert refusal.value.later == later


def test_expressions_without_end_are_not_remembered_without_end() -> None:
    selectors = DeviceSelectors()
    for number in range(MOST_KEPT + 10):
        assert selectors.matches(f"{number} == {number}", "slice", "gpu", dict, "")
    assert len(selectors._programs) <= MOST_KEPT and len(selectors._known) <= MOST_KEPT


@given(st.lists(st.sampled_from(['"a]"', "'[\\''", "[", "]", "x", "device.attributes[", " . ", "1"])))
def test_what_is_in_quotation_marks_stays_and_brackets_keep_their_order(parts: list[str]) -> None:
    text = "".join(parts)
    found = with_defaults(text)
    assert found.replace(".orValue({}))", "").replace("dyn(device.attributes[?", "device.attributes[") == text
    assert with_defaults("".join(part for part in parts if "device" not in part)) == "".join(
        part for part in parts if "device" not in part
    )
