{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{/*
What the operator of Prometheus scrapes. A monitor of pods and not of a service: each pod has its own
numbers, and no component needs an address.
*/}}

{{/*
Arguments: the root context, `name`, the `selector` of the pods (YAML), the `path` of the metrics, and
`namespaces` of the pods if they are not all in the chart's own.
*/}}
{{- define "nvdra.podMonitor" -}}
{{- $monitor := .root.Values.global.podMonitors | default dict -}}
apiVersion: monitoring.coreos.com/v1
kind: PodMonitor
metadata:
  name: {{ .name | quote }}
  namespace: {{ include "nvdra.namespace" .root | quote }}
  labels:
    {{- include "nvdra.labels" .root | nindent 4 }}
    {{- with $monitor.labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  selector:
    {{- .selector | nindent 4 }}
  {{- with .namespaces }}
  namespaceSelector:
    matchNames: {{ toJson . }}
  {{- end }}
  podMetricsEndpoints:
    - port: http
      path: {{ .path | quote }}
      interval: {{ $monitor.interval | default "30s" | quote }}
      # Some series say their node themselves, by the same name.
      honorLabels: true
      relabelings:
        - sourceLabels: [__meta_kubernetes_pod_node_name]
          targetLabel: node
{{- end -}}
