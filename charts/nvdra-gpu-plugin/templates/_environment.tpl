{{/* The plugin's settings: each variable is a flag in capitals (nvdra-gpu-plugin --help). */}}
{{- define "nvdra-gpu-plugin.environment" -}}
{{- $shares := .Values.kubeletPlugin.consumableShares | toString -}}
{{- $gates := .Values.global.featureGates | default dict -}}
{{- if and (not (has $shares (list "" "disabled"))) (not (get $gates "ConsumableShares" | default (and (get $gates "AllAlpha") (not (hasKey $gates "ConsumableShares"))))) -}}
{{- fail (printf "kubeletPlugin.consumableShares=%s needs the feature gate: global.featureGates.ConsumableShares=true" $shares) -}}
{{- end -}}
{{ include "nvdra.nodeEnvironment" . }}
- name: HTTP_ENDPOINT
  value: {{ .Values.kubeletPlugin.metrics.gpuHttpEndpoint | quote }}
- name: METRICS_PATH
  value: {{ ternary .Values.kubeletPlugin.metrics.metricsPath "" .Values.kubeletPlugin.metrics.enabled | quote }}
- name: DEVICE_TAINT_EFFECT
  value: {{ .Values.kubeletPlugin.deviceTaintEffect }}
- name: CONSUMABLE_SHARES
  value: {{ $shares | default "disabled" | quote }}
{{- with .Values.kubeletPlugin.containers.gpus.env }}
{{ toYaml . }}
{{- end }}
{{- end -}}
