"""`kant policies`: the policies that profiles consist of, and a template for a new one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter
from rich.table import Table

from kant.cli.inputs import Json
from kant.cli.output import print_json
from kant.cli.show import console

if TYPE_CHECKING:
    from kant.api.catalogue import PolicyEntry

policies_app = App(
    name="policies", help="List the policies and their tags, or begin one of your own.",
    help_format="plaintext",
)  # fmt: skip


@policies_app.default
def list_policies(
    *,
    where: Annotated[
        list[str] | None,
        Parameter(help="KEY=VALUE: only those with this tag (docs/taxonomy.md); may be repeated.", negative=""),
    ] = None,
    json: Json = False,
) -> int:
    """List the policies with their fields, their sources, their tags and the packages that they come from."""
    from kant.api.catalogue import KINDS, catalogue, chosen, own_tags, parse_where
    from kant.scheduler.registry import OWN

    wanted = parse_where(where or ())
    entries = chosen(catalogue(), wanted)
    if json:
        print_json({kind: [_facts(entry) for entry in entries if entry.kind == kind] for kind in KINDS})
        return 0 if entries else 1
    for kind in KINDS:
        own = [entry for entry in entries if entry.kind == kind]
        if not own:
            continue
        table = Table(title=kind, title_justify="left", show_lines=True)
        for column in ("policy", "what it does", "fields", "source"):
            table.add_column(column, overflow="fold", ratio=1 if column in ("policy", "fields") else 3)
        for entry in own:
            fields = "\n".join(f"{name} = {value}" for name, value in entry.fields.items())
            package = "" if entry.package == OWN else f"\npackage {entry.package}"
            table.add_row(entry.policy, f"{entry.about}\n{own_tags(entry)}", fields, entry.source + package)
        console.print(table)
    if not entries:
        console.print(f"no policy has {' and '.join(f'{key}={value}' for key, value in wanted)}")
    return 0 if entries else 1


@policies_app.command
def new(
    name: Annotated[str, Parameter(help="The name in profiles, such as largest-first.")],
    /,
    *,
    kind: Annotated[
        Literal["order", "discipline", "placement"],
        Parameter(
            help="order: which job is tried first; discipline: what if it does not fit; placement: where it runs."
        ),
    ] = "order",
    out: Annotated[
        Path | None, Parameter(help="Folder of the package, which must not exist. Default: kant-NAME.")
    ] = None,
) -> None:
    """Write a working policy, its test and a profile, as a package to install and change."""
    from kant.cli.new_policy import next_commands, write_package

    folder = out or Path(f"kant-{name}")
    for file in write_package(name, kind, folder):
        print(file)
    print("\nnext:", *next_commands(name, folder), sep="\n  ")


def _facts(entry: PolicyEntry) -> dict[str, Any]:
    return {
        "policy": entry.policy,
        "about": entry.about,
        "fields": dict(entry.fields),
        "source": entry.source,
        "package": entry.package,
        "tags": {key: list(values) for key, values in entry.tags.items()},
    }
