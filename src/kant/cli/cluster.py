"""`kant cluster`: what a cluster consists of."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from kant.cli.inputs import Json
from kant.cli.output import Reply
from kant.cli.show import show_mapping
from kant.workload.cluster_describe import describe_cluster
from kant.workload.cluster_file import read_cluster

cluster_app = App(name="cluster", help="Look at cluster files.", help_format="plaintext")


@cluster_app.command
def describe(
    cluster: Annotated[str, Parameter(help="A cluster file (TOML, openb nodes, Lingjun topology), or NxG.")],
    /,
    *,
    json: Json = False,
) -> int:
    """Print what a cluster consists of: nodes, GPUs by model, sizes, topology."""
    facts = describe_cluster(read_cluster(cluster))
    return Reply(facts, lambda: show_mapping(facts.pop("name"), facts)).print(json)
