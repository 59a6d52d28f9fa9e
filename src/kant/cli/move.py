"""`kant export`, `kant import`: from one machine to another, or to Kubernetes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from kant.cli.inputs import Home, Json
from kant.cli.kube_options import GROUP, Kube
from kant.cli.output import Reply
from kant.cli.plain import say
from kant.model.errors import InputError
from kant.service.client import home_of


def export(
    folder: Annotated[Path, Parameter(help="The target: a new or empty folder.")],
    /,
    *,
    image: Annotated[
        str,
        Parameter(
            env_var="KANT_IMAGE",
            group=GROUP,
            help="Also write Kubernetes objects (kubernetes.json), whose jobs run in this image.",
        ),
    ] = "",
    namespace: Annotated[
        str, Parameter(name=["--namespace", "-n"], group=GROUP, help="The namespace of the jobs.")
    ] = "default",
    system: Annotated[str, Parameter(name="--kube-system", group=GROUP, help="The namespace of Kant.")] = (
        "kant-system"
    ),
    env: Annotated[
        tuple[str, ...],
        Parameter(group=GROUP, negative="", help="An environment variable that jobs keep; may be repeated."),
    ] = (),
    keep_workdir: Annotated[
        bool, Parameter(group=GROUP, negative="", help="Keep the working folders of jobs.")
    ] = False,
    gpu_resource: Annotated[str, Parameter(group=GROUP, help="The resource name of GPUs there.")] = "nvidia.com/gpu",
    home: Home = None,
    json: Json = False,
) -> int:
    """Write everything that Kant on this machine knows to a folder: jobs, queues, history, journals and what it has
    learned.

    `kant import` imports it on another machine, or with --kube on Kubernetes. Nothing changes here. The folder has the
    environments of jobs: keep it private.
    """
    from kant.service.export import export_home

    if image:
        from kant.service.export_kubernetes import KubernetesOptions, write_objects

    header = export_home(home_of(home), folder)
    found: dict[str, Any] = {"folder": str(folder), **_fields(header)}
    if image:
        options = KubernetesOptions(image, namespace, system, gpu_resource, env, keep_workdir)
        found["kubernetes"] = _fields(write_objects(folder, options))
    return Reply(found, lambda: _show_export(found)).print(json)


def _fields(found: Any) -> dict[str, Any]:
    return dict(msgspec.to_builtins(found))


def _show_export(found: dict[str, Any]) -> None:
    say(f"{found['folder']}: {found['over']:,} ended jobs, {found['waiting']:,} that wait, {found['queues']} queues")
    if found["running"]:
        say(f"{found['running']:,} jobs still run here, and are not exported")
    if found["is_live"]:
        say("Kant still runs here: waiting jobs now exist in both places (`kant down` before the final export)")
    made = found.get("kubernetes")
    if made is not None:
        say(f"kubernetes.json: {made['objects']} objects, {made['jobs']} of them jobs")
        for job, why in made["held"].items():
            say(f"job {job} is held there: {why}")
        for job, why in made["left_out"].items():
            say(f"job {job} is left out: {why}")


def import_(
    folder: Annotated[Path, Parameter(help="The folder that `kant export` has written.")],
    /,
    *,
    home: Home = None,
    json: Json = False,
    there: Kube = Kube(),  # noqa: B008 - it is frozen
) -> int:
    """Import what another Kant has exported: on a machine on which Kant is stopped, or into a Kubernetes cluster."""
    from kant.service.export import QUEUES, import_home, read_export

    header = read_export(folder)
    if there and home is None:
        from kant.cli.kubernetes_past import bring

        if there.namespace:
            raise InputError("--namespace", "that of the export (`kant export --namespace`)", there.namespace)
        made = bring(there, folder / "kubernetes.json")
        return Reply({"made": made}, lambda: _show_made(made)).print(json)
    found = _fields(import_home(folder, home_of(home)))
    return Reply(found, lambda: _show_import(found, folder / QUEUES if header.queues else None)).print(json)


def _show_made(made: dict[str, int]) -> None:
    say("made: " + ", ".join(f"{kind} {count:,}" for kind, count in made.items()))


def _show_import(found: dict[str, Any], queues: Path | None) -> None:
    say(f"{found['over']:,} ended jobs, {found['waiting']:,} that wait")
    for old, new in found["ids"].items():
        say(f"job {old} is now job {new}")
    for job in found["held"]:
        say(f"job {job} is held: it depends on a job that runs elsewhere")
    if queues is not None:
        say(f"its queues: kant up --queues {queues}")
