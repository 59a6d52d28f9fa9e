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

LABELS = """\
{{- define "kant.labels" -}}
app.kubernetes.io/name: kant
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: scheduler
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "kant.extraArg" -}}
{{- if regexMatch "^--(namespace|profile|journal|journal-limit|listen)(=|$)" . }}
{{- printf "extraArgs: expected none that the chart gives itself, got %s" . | fail }}
{{- end }}
{{- . }}
{{- end }}

{{- define "kant.schedulerName" -}}
{{- $said := regexFind "--scheduler-name[= ][^ ]+" (join " " .Values.extraArgs) }}
{{- trimPrefix "--scheduler-name" $said | trimAll "= " | default "kant" }}
{{- end }}

{{- define "kant.profile" -}}
{{- $said := trim .Values.profile }}
{{- if regexMatch `^[A-Za-z0-9_.-]+$` $said }}
{{- $found := .Files.Get (printf "profiles/%s.toml" $said) }}
{{- if not $found }}
{{- $names := list }}
{{- range $path, $_ := .Files.Glob "profiles/*.toml" }}
{{- $names = append $names (trimSuffix ".toml" (base $path)) }}
{{- end }}
{{- printf "profile: expected a profile in TOML, or one of %s, got %s" (join ", " (sortAlpha $names)) $said | fail }}
{{- end }}
{{- $found }}
{{- else }}
{{- $read := fromToml $said }}
{{- with $read.Error }}{{ printf "profile: expected TOML (%s)" . | fail }}{{ end }}
{{- range $table := list "order" "discipline" "placement" }}
{{- $own := get $read $table }}
{{- if not (and (kindIs "map" $own) (kindIs "string" (get (default dict $own) "policy"))) }}
{{- printf "profile: expected %s with a policy, as in docs/profiles.md" $table | fail }}
{{- end }}
{{- end }}
{{- $said }}
{{- end }}
{{- end }}

{{- define "kant.journalMiB" -}}
{{- $limit := int64 .Values.journal.limitMiB }}
{{- $units := dict "Mi" 1 "Gi" 1024 "Ti" 1048576 }}
{{- $unit := regexFind "[A-Z]i$" .Values.journal.sizeLimit }}
{{- $size := mul (trimSuffix $unit .Values.journal.sizeLimit | int64) (get $units $unit) }}
{{- if le $size $limit }}
{{- $got := .Values.journal.sizeLimit }}
{{- printf "journal.sizeLimit: expected more than the %d MiB of journal.limitMiB, got %s" $limit $got | fail }}
{{- end }}
{{- $limit }}
{{- end }}
"""
"""The labels of all objects; the profile, by its name or as it is given; and values that a schema cannot check: further
arguments, and what journals may take."""

NOTES = """\
Kant {{ .Chart.AppVersion }} schedules the pods of this cluster that say
`schedulerName: {{ include "kant.schedulerName" . }}`.

Wait until it leads:
  kubectl -n {{ .Release.Namespace }} rollout status deployment/kant
{{- if not .Values.gates }}

Autoscalers see pods that only wait for their quota as unschedulable. To hide these from them: --set gates=true
(Kubernetes 1.36 or newer).
{{- else }}

Pods that wait keep the gate scheduling.kant.dev/quota when the release is uninstalled:
lift it, or no scheduler takes them.
{{- end }}
{{- if not .Values.serviceMonitor }}

Metrics are at http://kant.{{ .Release.Namespace }}:8080/metrics; for the Prometheus operator: --set serviceMonitor=true
{{- end }}

Ask why a pod waits:
  kubectl kant why POD -n NAMESPACE

Plan a change and see its effects before you apply it (role kant-planner):
  kant ops plan --kube --drain NODE

Kant's own kinds stay when the release is uninstalled, and with them your queues.
"""

EXPERIMENTS = ("helios-", "muri-", "openb-")
"""What the names of profiles begin with that reproduce published experiments, and are not for use."""

_LEGEND = re.compile(r"\{\{\w+\}\}")
"""What Grafana fills in, and Helm would take for its own."""

_NAMED = re.compile(r"^  labels:\n    app\.kubernetes\.io/name: kant$", re.MULTILINE)


def chart_profiles() -> dict[str, str]:
    """The text of each profile that the chart knows by its name, but for those that reproduce experiments."""
    return {name: text for name, text in builtin_texts().items() if not name.startswith(EXPERIMENTS)}


def chart_templates() -> dict[str, str]:
    """The templates of the chart by file name. Its kinds outlive the release, and with them the queues."""
    made = {"_helpers.tpl": LABELS, "NOTES.txt": NOTES}
    for name in definitions():
        text = part(name).replace("metadata:\n", 'metadata:\n  annotations: {"helm.sh/resource-policy": keep}\n', 1)
        made[f"{name}.yaml"] = text
    for name in PARTS:
        text = _LEGEND.sub(r'{{ "\g<0>" }}', part(name))
        text = _NAMED.sub('  labels:\n    {{- include "kant.labels" . | nindent 4 }}', fill(text, PLACES))
        value = OPTIONAL.get(name)
        made[f"{name}.yaml"] = text if value is None else f"{{{{- if .Values.{value} }}}}\n{text}{{{{- end }}}}\n"
    return made
