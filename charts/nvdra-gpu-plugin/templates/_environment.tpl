{{/* The plugin's settings: each variable is a flag in capitals (nvdra-gpu-plugin --help). */}}
{{- define "nvdra-gpu-plugin.environment" -}}
{{- $plugin := .Values.kubeletPlugin -}}
{{- $gpus := $plugin.containers.gpus -}}
- name: NODE_NAME
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_UID
  valueFrom: {fieldRef: {fieldPath: metadata.uid}}
- name: NVIDIA_DRIVER_ROOT
  value: {{ clean .Values.global.nvidiaDriverRoot | quote }}
- name: DRIVER_ROOT_CTR_PATH
  value: /driver-root
- name: PROC_ROOT
  value: {{ clean .Values.global.procRoot | quote }}
- name: SYS_ROOT
  value: {{ clean .Values.global.sysRoot | quote }}
- name: DEV_ROOT
  value: {{ clean .Values.global.devRoot | quote }}
{{- with .Values.global.nvidiaCDIHookPath }}
- name: NVIDIA_CDI_HOOK_PATH
  value: {{ . | quote }}
{{- end }}
- name: CDI_ROOT
  value: /var/run/cdi
- name: KUBELET_REGISTRAR_DIRECTORY_PATH
  value: {{ $plugin.kubeletRegistrarDirectoryPath | quote }}
- name: KUBELET_PLUGINS_DIRECTORY_PATH
  value: {{ $plugin.kubeletPluginsDirectoryPath | quote }}
- name: HTTP_ENDPOINT
  value: {{ $plugin.metrics.gpuHttpEndpoint | quote }}
- name: METRICS_PATH
  value: {{ ternary $plugin.metrics.metricsPath "" $plugin.metrics.enabled | quote }}
- name: LOGGING_FORMAT
  value: json
- name: V
  value: {{ .Values.global.logVerbosity | toString | quote }}
{{- with include "nvdra-gpu-plugin.featureGates" . }}
- name: FEATURE_GATES
  value: {{ . | quote }}
{{- end }}
{{- with .Values.global.otlp.endpoint }}
- name: OTEL_EXPORTER_OTLP_ENDPOINT
  value: {{ . | quote }}
{{- end }}
# Keeps NVIDIA's container runtime from giving this container GPUs of its own accord.
- name: NVIDIA_VISIBLE_DEVICES
  value: void
{{- with $gpus.env }}
{{ toYaml . }}
{{- end }}
{{- end -}}
