{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{/*
What every component's chart has in common: names, labels, the image, the feature gates. Each of them
links this file into its templates, so a packaged chart contains it.
*/}}

{{/* The name of every object of a chart, except those whose names are fixed. */}}
{{- define "nvdra.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "nvdra.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride -}}
{{- end -}}

{{/* The service account's name, for the pods, the role bindings and the admission policies. */}}
{{- define "nvdra.serviceAccountName" -}}
{{- default (include "nvdra.fullname" .) .Values.serviceAccount.name -}}
{{- end -}}

{{/* A selector is immutable, so it contains only the names of the chart and of the release. */}}
{{- define "nvdra.selectorLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "nvdra.labels" -}}
{{ include "nvdra.selectorLabels" . }}
app.kubernetes.io/part-of: nvdra
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | quote }}
{{- end -}}

{{/* The image of one program. Arguments: the root context and its `image` value. */}}
{{- define "nvdra.image" -}}
{{ include "nvdra.repository" . }}:{{ default .root.Chart.AppVersion .image.tag -}}
{{- with .image.digest }}@{{ . }}{{ end -}}
{{- end -}}

{{- define "nvdra.repository" -}}
{{- with .root.Values.global.imageRegistry }}{{ trimSuffix "/" . }}/{{ end -}}
{{- .image.repository -}}
{{- end -}}

{{/* `A=true,B=false`, sorted by name; empty without gates. */}}
{{- define "nvdra.featureGates" -}}
{{- $gates := list -}}
{{- range $name, $on := .Values.global.featureGates -}}
{{- $gates = append $gates (printf "%s=%t" $name $on) -}}
{{- end -}}
{{- join "," $gates -}}
{{- end -}}

{{/*
Node labels of a pod, as YAML. The images are for Linux, and a cluster may have Windows nodes without a taint. Takes the
value `nodeSelector`, whose labels win.
*/}}
{{- define "nvdra.nodeSelector" -}}
{{- merge dict (. | default dict) (dict "kubernetes.io/os" "linux") | toYaml -}}
{{- end -}}

{{- define "nvdra.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ include "nvdra.serviceAccountName" . | quote }}
  namespace: {{ include "nvdra.namespace" . | quote }}
  labels:
    {{- include "nvdra.labels" . | nindent 4 }}
  {{- with .Values.serviceAccount.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
{{- end -}}
