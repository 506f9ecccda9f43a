{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{/* Definitions of this chart. */}}

{{/*
The value tls, as YAML, with all its keys. Of the umbrella chart, what is missing is refused after these templates.
*/}}
{{- define "nvdra-webhook.tls" -}}
{{- $certManager := dict "issuerType" "" "issuerName" "" "dnsNames" list -}}
{{- $all := dict "mode" "" "certManager" $certManager "secret" (dict "name" "" "caBundle" "") -}}
{{- .Values.tls | default dict | deepCopy | mergeOverwrite $all | toYaml -}}
{{- end -}}

{{- define "nvdra-webhook.tlsMode" -}}
{{- (include "nvdra-webhook.tls" . | fromYaml).mode -}}
{{- end -}}

{{/* Name of the Secret with the key pair. */}}
{{- define "nvdra-webhook.secretName" -}}
{{- if eq (include "nvdra-webhook.tlsMode" .) "secret" -}}
{{- (include "nvdra-webhook.tls" . | fromYaml).secret.name -}}
{{- else -}}
{{- include "nvdra.fullname" . }}-cert
{{- end -}}
{{- end -}}

{{/* The controller's service account, if it is installed; by default as its chart names it. */}}
{{- define "nvdra-webhook.controllerAccount" -}}
{{- $chart := "nvdra-cd-controller" -}}
{{- $name := ternary .Release.Name (printf "%s-%s" .Release.Name $chart) (contains $chart .Release.Name) | trunc 63 | trimSuffix "-" -}}
{{- .Values.controllerServiceAccountName | default $name -}}
{{- end -}}

{{- define "nvdra-webhook.serviceHost" -}}
{{- include "nvdra.fullname" . }}.{{ include "nvdra.namespace" . }}.svc
{{- end -}}

{{/* Whether the webhook lists classes and slices. */}}
{{- define "nvdra-webhook.looksAtCluster" -}}
{{- if not (regexMatch "^0+(\\.0*)?(ns|us|µs|ms|s|m|h)?$" .Values.clusterLookupInterval) }}true{{ end -}}
{{- end -}}

{{/*
What both entries of the registration say alike: who is called, and about which objects. Arguments:
the root and the path.
*/}}
{{- define "nvdra-webhook.called" -}}
{{- $path := last . }}
{{- with first . -}}
admissionReviewVersions: [v1]
sideEffects: None
matchPolicy: Equivalent
clientConfig:
  service:
    name: {{ include "nvdra.fullname" . | quote }}
    namespace: {{ include "nvdra.namespace" . | quote }}
    port: {{ .Values.servicePort }}
    path: {{ $path | quote }}
  {{- if eq (include "nvdra-webhook.tlsMode" .) "secret" }}
  caBundle: {{ (include "nvdra-webhook.tls" . | fromYaml).secret.caBundle }}
  {{- end }}
rules:
  - apiGroups: [resource.k8s.io]
    apiVersions: [v1, v1beta2, v1beta1]
    operations: [CREATE, UPDATE]
    resources: [resourceclaims, resourceclaimtemplates]
    scope: Namespaced
# The driver's own claims, of IMEX daemons, do not depend on the webhook.
namespaceSelector:
  matchExpressions:
    - key: kubernetes.io/metadata.name
      operator: NotIn
      values: [{{ include "nvdra.namespace" . | quote }}]
{{- end -}}
{{- end -}}

{{/* Expression: a claim or template has a config of our drivers. */}}
{{- define "nvdra-webhook.hasOurConfig" -}}
[object.?spec.?devices.?config.orValue([]), object.?spec.?spec.?devices.?config.orValue([])].exists(configs, configs.exists(each, each.?opaque.?driver.orValue('') in ['gpu.nvidia.com', 'compute-domain.nvidia.com']))
{{- end -}}

{{/* Conditions: there is something new to say. */}}
{{- define "nvdra-webhook.isChanged" -}}
- name: is-new-or-has-another-spec
  expression: request.operation == 'CREATE' || object.spec != oldObject.spec
- name: is-not-being-deleted
  expression: "!has(object.metadata.deletionTimestamp)"
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
{{- if eq (include "nvdra-webhook.tlsMode" .) "self-managed" }}
- name: TLS_SECRET_NAME
  value: {{ include "nvdra-webhook.secretName" . | quote }}
- name: SERVICE_NAME
  value: {{ include "nvdra.fullname" . | quote }}
- name: WEBHOOK_CONFIGURATION_NAME
  value: {{ printf "%s-config" (include "nvdra.fullname" .) | quote }}
{{- with (include "nvdra-webhook.tls" . | fromYaml).certManager.dnsNames }}
- name: TLS_DNS_NAMES
  value: {{ join "," . | quote }}
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
