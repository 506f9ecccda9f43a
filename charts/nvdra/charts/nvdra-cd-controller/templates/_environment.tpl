{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{/* The controller's settings: each variable is a flag in capitals (nvdra-cd-controller --help). */}}
{{- define "nvdra-cd-controller.environment" -}}
{{ include "nvdra-cd-controller.ownEnvironment" . }}
{{- with .Values.controller.env }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* A release that reuses values of before has none. */}}
{{- define "nvdra-cd-controller.crds" -}}
{{- (.Values.crds | default dict).install | default "auto" -}}
{{- end -}}

{{- define "nvdra-cd-controller.ownEnvironment" -}}
{{- $controller := .Values.controller -}}
{{- $secrets := list -}}
{{- range .Values.global.imagePullSecrets }}{{ $secrets = append $secrets .name }}{{ end -}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_UID
  valueFrom: {fieldRef: {fieldPath: metadata.uid}}
- name: NODE_NAME
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
- name: NAMESPACE
  value: {{ include "nvdra.namespace" . | quote }}
- name: IMAGE_NAME
  value: {{ include "nvdra-cd-controller.daemonImage" . | quote }}
- name: CD_DAEMON_IMAGE_PULL_POLICY
  value: {{ .Values.global.imagePullPolicy | quote }}
{{- with .Values.daemon.priorityClassName }}
- name: CD_DAEMON_PRIORITY_CLASS_NAME
  value: {{ . | quote }}
{{- end }}
{{- with .Values.daemon.resources }}
- name: CD_DAEMON_RESOURCES
  value: {{ toJson . | quote }}
{{- end }}
{{- if .Values.daemon.metrics.enabled }}
- name: CD_DAEMON_HTTP_ENDPOINT
  value: {{ .Values.daemon.metrics.httpEndpoint | quote }}
{{- end }}
{{- if .Values.daemon.networkPolicy.enabled }}
- name: CD_DAEMON_NETWORK_POLICY
  value: {{ include "nvdra-cd-controller.daemonNetworkRules" . | quote }}
{{- end }}
- name: LOG_VERBOSITY_CD_DAEMON
  value: {{ default .Values.global.logVerbosity .Values.daemon.logVerbosity | toString | quote }}
- name: MAX_NODES_PER_IMEX_DOMAIN
  value: {{ $controller.maxNodesPerImexDomain | toString | quote }}
- name: CRDS
  value: {{ include "nvdra-cd-controller.crds" . | quote }}
- name: IMEX_MODE
  value: {{ .Values.global.imex.mode | quote }}
- name: IMEX_ISOLATION
  value: {{ .Values.global.imex.isolation | quote }}
{{- with $secrets }}
- name: CD_DAEMON_IMAGE_PULL_SECRET_NAMES
  value: {{ join "," . | quote }}
{{- end }}
{{- with .Values.global.additionalNamespaces }}
- name: ADDITIONAL_NAMESPACES
  value: {{ join "," . | quote }}
{{- end }}
# Also with one replica: while a rollout replaces it there are two.
- name: LEADER_ELECTION_ENABLED
  value: "true"
- name: LEADER_ELECTION_LEASE_LOCK_NAMESPACE
  value: {{ include "nvdra.namespace" . | quote }}
- name: LEADER_ELECTION_LEASE_LOCK_NAME
  value: {{ include "nvdra.fullname" . | quote }}
- name: LEADER_ELECTION_LEASE_DURATION
  value: {{ $controller.leaderElection.leaseDuration | quote }}
- name: LEADER_ELECTION_RENEW_DEADLINE
  value: {{ $controller.leaderElection.renewDeadline | quote }}
- name: LEADER_ELECTION_RETRY_PERIOD
  value: {{ $controller.leaderElection.retryPeriod | quote }}
- name: HTTP_ENDPOINT
  value: {{ $controller.metrics.httpEndpoint | quote }}
- name: METRICS_PATH
  value: {{ ternary $controller.metrics.metricsPath "" $controller.metrics.enabled | quote }}
- name: LOGGING_FORMAT
  value: {{ .Values.global.loggingFormat | default "json" | quote }}
- name: V
  value: {{ .Values.global.logVerbosity | toString | quote }}
{{- with include "nvdra.featureGates" . }}
- name: FEATURE_GATES
  value: {{ . | quote }}
{{- end }}
{{- with .Values.global.otlp.endpoint }}
- name: OTEL_EXPORTER_OTLP_ENDPOINT
  value: {{ . | quote }}
{{- end }}
{{- end -}}
