{{/* Rules of the network policies. */}}

{{/* The connections that every component needs. */}}
{{- define "nvdra.egress" -}}
# The API server.
- ports:
    - {protocol: TCP, port: 443}
    - {protocol: TCP, port: 6443}
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
Lets the chart's pods out to the API server and the collector only. There are no ingress rules: probes
come from the node, metrics from wherever somebody has a Prometheus.
*/}}
{{- define "nvdra.networkPolicy" -}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ include "nvdra.fullname" . }}
  namespace: {{ include "nvdra.namespace" . }}
  labels:
    {{- include "nvdra.labels" . | nindent 4 }}
spec:
  podSelector:
    matchLabels:
      {{- include "nvdra.selectorLabels" . | nindent 6 }}
  policyTypes: [Egress]
  egress:
    {{- include "nvdra.egress" . | nindent 4 }}
{{- end -}}
