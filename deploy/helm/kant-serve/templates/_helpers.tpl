{{- define "serve.labels" -}}
app.kubernetes.io/name: kant-serve
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "serve.pod" -}}
serviceAccountName: {{ .Release.Name }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile:
    type: RuntimeDefault
{{- end }}

{{- define "serve.container" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "serve.kant" -}}
- --policy={{ .Values.policy }}
- --router={{ .Values.router }}
- --saturated-s={{ .Values.saturatedS }}
{{- range .Values.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end }}

{{- define "serve.cache" -}}
- name: cache
  mountPath: /var/cache/kant
{{- end }}
