{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{/* The plugin's settings: each variable is a flag in capitals (nvdra-cd-plugin --help). */}}
{{- define "nvdra-cd-plugin.environment" -}}
{{ include "nvdra-cd-plugin.ownEnvironment" . }}
{{- with .Values.kubeletPlugin.containers.computeDomains.env }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "nvdra-cd-plugin.ownEnvironment" -}}
{{- $domains := .Values.kubeletPlugin.containers.computeDomains -}}
{{ include "nvdra.nodeEnvironment" . }}
- name: NAMESPACE
  value: {{ include "nvdra.namespace" . | quote }}
{{- with .Values.global.additionalNamespaces }}
- name: ADDITIONAL_NAMESPACES
  value: {{ join "," . | quote }}
{{- end }}
- name: IMEX_MODE
  value: {{ .Values.global.imex.mode | quote }}
- name: IMEX_ISOLATION
  value: {{ .Values.global.imex.isolation | quote }}
- name: IMEX_HOST_SOCKET_PATH
  value: {{ .Values.global.imex.hostSocketPath | quote }}
- name: GPU_CLIQUE_LABEL_ENABLED
  value: {{ $domains.gpuCliqueLabelEnabled | toString | quote }}
- name: HTTP_ENDPOINT
  value: {{ .Values.kubeletPlugin.metrics.computeDomainHttpEndpoint | quote }}
- name: METRICS_PATH
  value: {{ ternary .Values.kubeletPlugin.metrics.metricsPath "" .Values.kubeletPlugin.metrics.enabled | quote }}
{{- end -}}
