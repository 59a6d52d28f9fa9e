"""DeviceTaintRules: taints that administrators put on devices, in addition to those that drivers publish.

Source: DeviceTaintRule of resource.k8s.io/v1beta2 (Kubernetes 1.36), where a rule selects by driver, pool and name.
Rules of v1alpha3 may also select by class and expressions, which Kant does not evaluate. Such a rule applies to each
device that its other fields select, so that no tainted device is allocated.
"""

from __future__ import annotations

import msgspec

from kant.kube.objects.names import TAINT_RULES
from kant.kube.objects.views import Taint, Unstructured, View


class DeviceTaintSelector(View, frozen=True):
    """The devices to which a rule applies. A field that is None matches any value."""

    driver: str | None = None
    pool: str | None = None
    device: str | None = None


class DeviceTaintRule(View, frozen=True):
    """A taint, and a selector of the devices that have it. Without a selector no device has it."""

    taint: Taint = Taint()
    device_selector: DeviceTaintSelector | None = None

    def is_about(self, driver: str, pool: str, device: str) -> bool:
        """Whether the device of this name has the taint."""
        asked = self.device_selector
        if asked is None:
            return False
        pairs = ((asked.driver, driver), (asked.pool, pool), (asked.device, device))
        return all(wanted is None or wanted == own for wanted, own in pairs)


def taint_rule(found: Unstructured) -> DeviceTaintRule:
    """Return the rule of an object. A malformed rule taints all devices, so that no device is allocated wrongly."""
    try:
        return msgspec.json.decode(found.spec, type=DeviceTaintRule)
    except msgspec.MsgspecError:
        return DeviceTaintRule(Taint(TAINT_RULES, found.metadata.name, "NoSchedule"), DeviceTaintSelector())
