"""The Helm chart (deploy/helm/kant): the files of `kant.kube.manifests`, with the chart's values in their places."""

from __future__ import annotations

import re

from kant.kube.manifests import OPTIONAL, PARTS, definitions, fill, part
from kant.scheduler.profile import builtin_texts


def _block(value: str, field: str, by: int) -> str:
    """A field of YAML that is there only where the value is not empty."""
    inside = f"{' ' * by}{field}:\n{{{{ toYaml . | indent {by + 2} }}}}"
    return f"{{{{- with .Values.{value} }}}}\n{inside}\n{{{{- end }}}}\n"


PLACES = {
    "namespace": "{{ .Release.Namespace }}",
    "scheduler_name": '{{ include "kant.schedulerName" . }}',
    "image": "{{ .Values.image }}",
    "replicas": "{{ .Values.replicas }}",
    "profile": '{{ include "kant.profile" . | trim | indent 4 }}',
    "priority_class": "{{ .Values.priorityClassName }}",
    "placement": "".join(
        _block(field, field, 6) for field in ("imagePullSecrets", "nodeSelector", "tolerations", "affinity")
    ),
    "extra_args": '{{- range .Values.extraArgs }}\n            - {{ include "kant.extraArg" . | quote }}\n{{- end }}\n',
    "journal_mib": '{{ include "kant.journalMiB" . }}',
    "journal_size": "{{ .Values.journal.sizeLimit }}",
    "resources": "{{ toYaml .Values.resources | indent 12 }}",
}
"""What stands in the templates in each place of the manifests."""

WRITTEN = ("_helpers.tpl", "NOTES.txt")
"""The templates that are written by hand: labels of all objects, values that a schema cannot check, and what helm says
at the end."""

EXPERIMENTS = ("helios-", "muri-", "openb-")
"""What the names of profiles begin with that reproduce published experiments, and are not for use."""

_LEGEND = re.compile(r"\{\{\w+\}\}")
"""What Grafana fills in, and Helm would take for its own."""

_NAMED = re.compile(r"^  labels:\n    app\.kubernetes\.io/name: kant$", re.MULTILINE)


def chart_profiles() -> dict[str, str]:
    """The text of each profile that the chart knows by its name, but for those that reproduce experiments."""
    return {name: text for name, text in builtin_texts().items() if not name.startswith(EXPERIMENTS)}


def chart_templates() -> dict[str, str]:
    """The other templates of the chart by file name. Its kinds outlive the release, and with them the queues."""
    made = {}
    for name in definitions():
        text = part(name).replace("metadata:\n", 'metadata:\n  annotations: {"helm.sh/resource-policy": keep}\n', 1)
        made[f"{name}.yaml"] = text
    for name in PARTS:
        text = _LEGEND.sub(r'{{ "\g<0>" }}', part(name))
        text = _NAMED.sub('  labels:\n    {{- include "kant.labels" . | nindent 4 }}', fill(text, PLACES))
        value = OPTIONAL.get(name)
        made[f"{name}.yaml"] = text if value is None else f"{{{{- if .Values.{value} }}}}\n{text}{{{{- end }}}}\n"
    return made
