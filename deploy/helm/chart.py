"""The Helm chart (deploy/helm/kant): the files of `kant.kube.manifests`, with the chart's values in their places."""

from __future__ import annotations

import re
from pathlib import Path

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


ENVOY_PLACES = (
    ("address: 127.0.0.1, port_value: 10000 }", "address: 0.0.0.0, port_value: 10000 }"),
    ("stream_idle_timeout: 300s", "stream_idle_timeout: {{ .Values.timeouts.idle }}"),
    ("timeout: 0s #", "timeout: {{ .Values.timeouts.whole }} #"),
    ("failure_mode_allow: true", "failure_mode_allow: {{ .Values.failOpen }}"),
    ("max_connections: 100000", "max_connections: {{ int .Values.limits.requests }}"),
    ("max_pending_requests: 100000", "max_pending_requests: {{ int .Values.limits.requests }}"),
    ("max_requests: 100000", "max_requests: {{ int .Values.limits.requests }}"),
    (
        "per_connection_buffer_limit_bytes: 33554432",
        "per_connection_buffer_limit_bytes: {{ int .Values.limits.bufferBytes }}",
    ),
    ("connect_timeout: 5s", "connect_timeout: {{ .Values.timeouts.connect }}"),
    ("consecutive_5xx: 5", "consecutive_5xx: {{ .Values.ejection.after }}"),
    ("base_ejection_time: 10s", "base_ejection_time: {{ .Values.ejection.base }}"),
    ("max_ejection_percent: 50", "max_ejection_percent: {{ .Values.ejection.mostPercent }}"),
    ("    - name: picker\n      type: STATIC", "    - name: picker\n      type: STRICT_DNS"),
    ("    - name: engines\n      type: STATIC", "    - name: engines\n      type: STRICT_DNS"),
    (
        "address: 127.0.0.1, port_value: 9002 }",
        "address: {{ .Release.Name }}-picker.{{ .Release.Namespace }}.svc, port_value: 9002 }",
    ),
    (
        "address: 127.0.0.1, port_value: 8000 }",
        "address: {{ .Values.engines.service }}.{{ .Release.Namespace }}.svc, "
        "port_value: {{ int .Values.engines.port }} }",
    ),
    ("              - endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: 8001 } } }\n", ""),
)
"""What the chart of the router has in place of what deploy/envoy.yaml says; each stands there once."""


def envoy_template() -> str:
    """Return deploy/envoy.yaml as a template of the chart `kant-serve`, so that there is one configuration of Envoy."""
    text = (Path(__file__).parents[1] / "envoy.yaml").read_text(encoding="utf-8")
    text = text.partition("static_resources:")[1] + text.partition("static_resources:")[2]
    for said, place in ENVOY_PLACES:
        if text.count(said) != 1:
            raise ValueError(f"deploy/envoy.yaml: expected once, got {text.count(said)} times: {said}")
        text = text.replace(said, place)
    return '{{- define "serve.envoy" -}}\n' + text + "{{- end }}\n"
