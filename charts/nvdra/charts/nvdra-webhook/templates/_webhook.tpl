{{/* Definitions of this chart. */}}

{{/* Name of the Secret with the key pair. */}}
{{- define "nvdra-webhook.secretName" -}}
{{- if eq .Values.tls.mode "secret" -}}
{{- .Values.tls.secret.name -}}
{{- else -}}
{{- include "nvdra.fullname" . }}-cert
{{- end -}}
{{- end -}}

{{- define "nvdra-webhook.serviceHost" -}}
{{- include "nvdra.fullname" . }}.{{ include "nvdra.namespace" . }}.svc
{{- end -}}

{{/* Whether the webhook lists classes and slices. */}}
{{- define "nvdra-webhook.looksAtCluster" -}}
{{- if not (regexMatch "^0+(\\.0*)?(ns|us|µs|ms|s|m|h)?$" .Values.clusterLookupInterval) }}true{{ end -}}
{{- end -}}

{{/*
The settings: each variable is a flag in capitals (nvdra-webhook --help).
*/}}
{{- define "nvdra-webhook.environment" -}}
- name: POD_UID
  valueFrom: {fieldRef: {fieldPath: metadata.uid}}
- name: NODE_NAME
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
- name: NAMESPACE
  value: {{ include "nvdra.namespace" . | quote }}
- name: PORT
  value: {{ .Values.containerPort | toString | quote }}
{{- if eq .Values.tls.mode "self-managed" }}
- name: TLS_SECRET_NAME
  value: {{ include "nvdra-webhook.secretName" . | quote }}
- name: SERVICE_NAME
  value: {{ include "nvdra.fullname" . | quote }}
- name: WEBHOOK_CONFIGURATION_NAME
  value: {{ printf "%s-config" (include "nvdra.fullname" .) | quote }}
{{- with .Values.tls.certManager }}
{{- with .dnsNames }}
- name: TLS_DNS_NAMES
  value: {{ join "," . | quote }}
{{- end }}
{{- end }}
{{- else }}
- name: TLS_CERT_FILE
  value: /cert/tls.crt
- name: TLS_PRIVATE_KEY_FILE
  value: /cert/tls.key
{{- end }}
- name: CLUSTER_LOOKUP_INTERVAL
  value: {{ .Values.clusterLookupInterval | quote }}
- name: SHUTDOWN_GRACE_PERIOD
  value: {{ .Values.shutdownGracePeriod | quote }}
- name: HTTP_ENDPOINT
  value: {{ .Values.metrics.httpEndpoint | quote }}
- name: METRICS_PATH
  value: {{ ternary .Values.metrics.metricsPath "" .Values.metrics.enabled | quote }}
- name: LOGGING_FORMAT
  value: {{ .Values.global.loggingFormat | quote }}
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
{{- with .Values.containers.webhook.env }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The notes after an installation of this chart or of the umbrella chart. */}}
{{- define "nvdra-webhook.notes" -}}
{{- $namespace := include "nvdra.namespace" . -}}
{{- $name := include "nvdra.fullname" . -}}
The webhook refuses ResourceClaims and ResourceClaimTemplates whose configs the plugins would refuse.

  Pods:          kubectl -n {{ $namespace }} get pods -l app.kubernetes.io/name={{ .Chart.Name }},app.kubernetes.io/instance={{ .Release.Name }}
  Registration:  kubectl get validatingwebhookconfiguration {{ $name }}-config
{{- end -}}
