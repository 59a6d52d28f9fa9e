"""`kant policies`: what a profile can be made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kant.cli.inputs import Json
from kant.cli.simulate import print_json

if TYPE_CHECKING:
    from kant.scheduler.registry import Policy


def policies(*, json: Json = False) -> None:
    """List the policies with their fields and sources."""
    from rich.table import Table

    from kant.cli.show import console
    from kant.scheduler import registry

    if json:
        print_json({kind: [_facts(p) for p in registry.policies(kind).values()] for kind in registry.KINDS})
        return
    for kind in registry.KINDS:
        table = Table(title=kind, title_justify="left", show_lines=True)
        for column in ("policy", "what it does", "fields", "source"):
            table.add_column(column, overflow="fold", ratio=1 if column in ("policy", "fields") else 3)
        for policy in registry.policies(kind).values():
            facts = _facts(policy)
            fields = "\n".join(f"{name} = {value}" for name, value in facts["fields"].items())
            table.add_row(policy.name, policy.about, fields, policy.source)
        console.print(table)


def _facts(policy: Policy) -> dict[str, Any]:
    import msgspec

    defaults = msgspec.to_builtins(policy.type())
    return {
        "policy": policy.name,
        "about": policy.about,
        "fields": {field.name: defaults[field.name] for field in policy.fields},
        "source": policy.source,
    }
