{{- define "pipework.labels" -}}
app.kubernetes.io/name: pipework
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "pipework.testLabels" -}}
app.kubernetes.io/name: pipework-test
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "pipework.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end }}
{{- end }}
{{- end }}
{{- define "pipework.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}
{{- define "pipework.placement" }}
{{- range $key := list "nodeSelector" "tolerations" "affinity" "imagePullSecrets" "topologySpreadConstraints" "serviceAccountName" }}
{{- with index $.Values $key }}
{{ $key }}: {{- if kindIs "string" . }} {{ . }}{{ else }}{{ toYaml . | nindent 2 }}{{ end }}
{{- end }}
{{- end }}
{{- end }}
