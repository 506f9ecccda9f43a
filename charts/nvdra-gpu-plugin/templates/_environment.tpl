{{/* The plugin's settings: each variable is a flag in capitals (nvdra-gpu-plugin --help). */}}
{{- define "nvdra-gpu-plugin.environment" -}}
{{ include "nvdra.nodeEnvironment" . }}
- name: HTTP_ENDPOINT
  value: {{ .Values.kubeletPlugin.metrics.gpuHttpEndpoint | quote }}
- name: METRICS_PATH
  value: {{ ternary .Values.kubeletPlugin.metrics.metricsPath "" .Values.kubeletPlugin.metrics.enabled | quote }}
- name: DEVICE_TAINT_EFFECT
  value: {{ .Values.kubeletPlugin.deviceTaintEffect }}
{{- with .Values.kubeletPlugin.containers.gpus.env }}
{{ toYaml . }}
{{- end }}
{{- end -}}
