"""`--kube` and related options: which Kubernetes cluster a verb asks about.

This module evaluates its annotations at once, since a module whose class inherits these options lacks their names.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

GROUP = Group("On Kubernetes")
Context = Annotated[str | None, Parameter(help="The context of the kubeconfig to use. Default: its current one.")]
Kubeconfig = Annotated[Path | None, Parameter(help="A kubeconfig file. Default: KUBECONFIG, else ~/.kube/config.")]
Namespace = Annotated[str, Parameter(name=["--namespace", "-n"], help="The namespace. Default: that of the context.")]
System = Annotated[str, Parameter(name="--kube-system", help="The namespace in which Kant runs there.")]
SYSTEM = "kant-system"


@Parameter(name="*", group=GROUP)
@dataclass(frozen=True, slots=True)
class Kube:
    """Which cluster to ask. Each of the other options implies `--kube`."""

    kube: Annotated[
        bool, Parameter(env_var="KANT_KUBE", help="Ask Kant on a Kubernetes cluster, not on this machine.")
    ] = False
    context: Context = None
    namespace: Namespace = ""
    kubeconfig: Kubeconfig = None

    def __bool__(self) -> bool:
        """Whether any of these options selects a Kubernetes cluster."""
        return self.kube or self.context is not None or bool(self.namespace) or self.kubeconfig is not None


@Parameter(name="*", group=GROUP)
@dataclass(frozen=True, slots=True)
class KubeQuestion(Kube):
    """The options of a question about the whole cluster."""

    profile: Annotated[
        str,
        Parameter(name="--kube-profile", help="A built-in profile or a TOML file. Default: that of Kant there."),
    ] = ""
    system: System = SYSTEM


@Parameter(name="*", group=GROUP)
@dataclass(frozen=True, slots=True)
class KubeSubmission(Kube):
    """The options of a job on Kubernetes."""

    pods: Annotated[
        int, Parameter(help="Number of pods that start together, each with --gpus, --cpus and --memory.")
    ] = 1
    priority_class: Annotated[str, Parameter(help="The PriorityClass (Kubernetes has no numeric priority here).")] = ""
    within: Annotated[
        str, Parameter(help="A level of the fabric (node, hbd, leaf, spine): one domain has to hold all pods.")
    ] = ""
    segments: Annotated[
        str, Parameter(help="Number of pods for each level, from the outermost to the innermost: 'spine=16 leaf=4'.")
    ] = ""
    gpu_resource: Annotated[str, Parameter(help="The resource name of GPUs there.")] = "nvidia.com/gpu"
