{{- define "pipework.labels" -}}
app.kubernetes.io/name: pipework
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "pipework.testLabels" -}}
app.kubernetes.io/name: pipework-test
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "pipework.placement" }}
{{- range $key := list "nodeSelector" "tolerations" "affinity" "imagePullSecrets" }}
{{- with index $.Values $key }}
{{ $key }}: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}
