"""`kant policies`: what a profile can be made of, and a first version of a policy of your own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from kant.cli.inputs import Json
from kant.cli.output import print_json

if TYPE_CHECKING:
    from kant.scheduler.registry import Policy

policies_app = App(
    name="policies", help="List the policies that a profile can choose, or begin one of your own.",
    help_format="plaintext",
)  # fmt: skip


@policies_app.default
def list_policies(*, json: Json = False) -> None:
    """List the policies with their fields, their sources and the packages that they come from."""
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
            package = "" if policy.package == registry.OWN else f"\npackage {policy.package}"
            table.add_row(policy.name, policy.about, fields, policy.source + package)
        console.print(table)


@policies_app.command
def new(
    name: Annotated[str, Parameter(help="What profiles call it, such as largest-first.")],
    /,
    *,
    kind: Annotated[
        Literal["order", "discipline", "placement"],
        Parameter(help="order: which job goes first; discipline: what if it does not fit; placement: where it goes."),
    ] = "order",
    out: Annotated[
        Path | None, Parameter(help="Folder of the package, which must not exist. Default: kant-NAME.")
    ] = None,
) -> None:
    """Write a policy that works, its test and a profile, as a package to install and change."""
    from kant.cli.new_policy import next_commands, write_package

    folder = out or Path(f"kant-{name}")
    for file in write_package(name, kind, folder):
        print(file)
    print("\nnext:", *next_commands(name, folder), sep="\n  ")


def _facts(policy: Policy) -> dict[str, Any]:
    import msgspec

    defaults = msgspec.to_builtins(policy.type())
    return {
        "policy": policy.name,
        "about": policy.about,
        "fields": {field.name: defaults[field.name] for field in policy.fields},
        "source": policy.source,
        "package": policy.package,
    }
