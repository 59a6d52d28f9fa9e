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
