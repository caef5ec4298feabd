{{- define "pipework.labels" -}}
app.kubernetes.io/name: pipework
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
