{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{/* Rules of the network policies. */}}

{{- define "nvdra.apiServerEgress" -}}
# The API server.
- ports:
    {{- range .Values.global.apiServerPorts | default (list 443 6443) }}
    - {protocol: TCP, port: {{ . }}}
    {{- end }}
{{- end -}}

{{/* The connections that every component needs. */}}
{{- define "nvdra.egress" -}}
{{ include "nvdra.apiServerEgress" . }}
{{- with .Values.global.otlp.endpoint }}
{{- $url := urlParse . }}
{{- $port := regexFind ":[0-9]+$" $url.host | trimPrefix ":" | default (ternary "443" "80" (eq $url.scheme "https")) }}
# The collector, and the name service that finds it.
- ports:
    - {protocol: TCP, port: {{ $port }}}
    - {protocol: UDP, port: 53}
    - {protocol: TCP, port: 53}
{{- end }}
{{- end -}}

{{/*
Lets others in to the metrics of an address, for instance ":8080". Probes need no rule: they come from the
node. Takes a list of the address and the peers; no peers are all.
*/}}
{{- define "nvdra.metricsIngress" -}}
{{- $peers := last . }}
# Metrics.
- ports:
    - {protocol: TCP, port: {{ splitList ":" (first .) | last }}}
  {{- with $peers }}
  from:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{/* Whether a component of the chart has a network policy: "true" or empty. Takes the values of the chart. */}}
{{- define "nvdra.hasNetworkPolicy" -}}
{{- range list . .kubeletPlugin .controller }}
{{- if ((. | default dict).networkPolicy | default dict).enabled }}true{{ end }}
{{- end }}
{{- end -}}

{{/*
Lets the chart's pods out to the API server and the collector only, and others in to their metrics only. Takes
a list of the chart's root, the address of the metrics (empty: none) and the values of the policy.
*/}}
{{- define "nvdra.networkPolicy" -}}
{{- $endpoint := index . 1 }}
{{- $values := index . 2 }}
{{- with first . }}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ include "nvdra.fullname" . | quote }}
  namespace: {{ include "nvdra.namespace" . | quote }}
  labels:
    {{- include "nvdra.labels" . | nindent 4 }}
spec:
  podSelector:
    matchLabels:
      {{- include "nvdra.selectorLabels" . | nindent 6 }}
  policyTypes: [Ingress, Egress]
  {{- if $endpoint }}
  ingress:
    {{- include "nvdra.metricsIngress" (list $endpoint $values.metricsFrom) | nindent 4 }}
  {{- end }}
  egress:
    {{- include "nvdra.egress" . | nindent 4 }}
{{- end }}
{{- end -}}
