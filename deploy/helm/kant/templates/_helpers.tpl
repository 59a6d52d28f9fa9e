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
