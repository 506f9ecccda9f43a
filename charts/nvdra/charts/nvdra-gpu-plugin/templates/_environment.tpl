{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{/* The plugin's settings: each variable is a flag in capitals (nvdra-gpu-plugin --help). */}}
{{- define "nvdra-gpu-plugin.environment" -}}
{{ include "nvdra-gpu-plugin.ownEnvironment" . }}
{{- with .Values.kubeletPlugin.containers.gpus.env }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "nvdra-gpu-plugin.ownEnvironment" -}}
{{ include "nvdra.nodeEnvironment" . }}
- name: HTTP_ENDPOINT
  value: {{ .Values.kubeletPlugin.metrics.gpuHttpEndpoint | quote }}
- name: METRICS_PATH
  value: {{ ternary .Values.kubeletPlugin.metrics.metricsPath "" .Values.kubeletPlugin.metrics.enabled | quote }}
- name: DEVICE_TAINT_EFFECT
  value: {{ .Values.kubeletPlugin.deviceTaintEffect | default "NoSchedule" }}
- name: KEEP_MIG_MODE
  value: {{ .Values.kubeletPlugin.keepMigMode | default false | quote }}
- name: CONSUMABLE_SHARES
  value: {{ .Values.kubeletPlugin.consumableShares | default "disabled" | toString | quote }}
- name: SHARE_CONFIGS
  value: {{ .Values.kubeletPlugin.shareConfigs | default "any" }}
{{- if include "nvdra-gpu-plugin.hasPassthrough" . }}
- name: PASSTHROUGH_PREBOUND
  value: {{ dig "passthrough" "prebound" "offer" (.Values.kubeletPlugin | toJson | fromJson) }}
{{- end }}
# For the Deployments of MPS control daemons, with the gate MPSSupport: they use this pod's image and account.
- name: NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
- name: IMAGE_NAME
  value: {{ include "nvdra.image" (dict "root" . "image" .Values.image) | quote }}
- name: IMAGE_PULL_POLICY
  value: {{ .Values.global.imagePullPolicy }}
{{- with .Values.global.imagePullSecrets }}
{{- $secrets := list }}
{{- range . }}
{{- $secrets = append $secrets .name }}
{{- end }}
- name: IMAGE_PULL_SECRETS
  value: {{ join "," $secrets | quote }}
{{- end }}
- name: SERVICE_ACCOUNT_NAME
  value: {{ include "nvdra.serviceAccountName" . | quote }}
{{- with include "nvdra-gpu-plugin.mpsPriorityClass" . }}
- name: MPS_DAEMON_PRIORITY_CLASS_NAME
  value: {{ . | quote }}
{{- end }}
{{- range $kind, $default := dict "requests" (dict "cpu" "50m" "memory" "256Mi") "limits" (dict "cpu" "16" "memory" "32Gi") }}
{{- $amounts := list }}
{{- range $resource, $amount := dig "mpsDaemon" "resources" $kind $default ($.Values.kubeletPlugin | toJson | fromJson) }}
{{- if not (kindIs "invalid" $amount) }}
{{- $amounts = append $amounts (printf "%s=%s" $resource ($amount | toJson | trimAll "\"")) }}
{{- end }}
{{- end }}
- name: MPS_DAEMON_{{ upper $kind }}
  value: {{ join "," $amounts | quote }}
{{- end }}
- name: MPS_DAEMON_TERMINATION_GRACE_PERIOD_SECONDS
  value: {{ dig "mpsDaemon" "terminationGracePeriodSeconds" 3600 (.Values.kubeletPlugin | toJson | fromJson) | int | quote }}
{{- end -}}

{{/* "true" if the gate MPSSupport is on. */}}
{{- define "nvdra-gpu-plugin.hasMps" -}}
{{- $gates := .Values.global.featureGates | default dict -}}
{{- if ternary (get $gates "MPSSupport") (get $gates "AllAlpha") (hasKey $gates "MPSSupport") -}}true{{- end -}}
{{- end -}}

{{/* "true" if the gate PassthroughSupport is on. */}}
{{- define "nvdra-gpu-plugin.hasPassthrough" -}}
{{- include "nvdra-gpu-plugin.isAlphaOn" (dict "gates" (.Values.global.featureGates | default dict) "name" "PassthroughSupport") -}}
{{- end -}}
