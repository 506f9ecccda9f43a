{{/* Names, labels and derived values. Every object of the chart is called as `fullname` says. */}}

{{- define "nvdra-cd-controller.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "nvdra-cd-controller.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride -}}
{{- end -}}

{{/* The one source of the account's name: for the pods and the role bindings. */}}
{{- define "nvdra-cd-controller.serviceAccountName" -}}
{{- default (include "nvdra-cd-controller.fullname" .) .Values.serviceAccount.name -}}
{{- end -}}

{{/* A Deployment's selector cannot change, so nothing but the release's name may enter it. */}}
{{- define "nvdra-cd-controller.selectorLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "nvdra-cd-controller.labels" -}}
{{ include "nvdra-cd-controller.selectorLabels" . }}
app.kubernetes.io/part-of: nvdra
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* `A=true,B=false`, sorted by name; empty without gates. */}}
{{- define "nvdra-cd-controller.featureGates" -}}
{{- $gates := list -}}
{{- range $name, $on := .Values.global.featureGates -}}
{{- $gates = append $gates (printf "%s=%t" $name $on) -}}
{{- end -}}
{{- join "," $gates -}}
{{- end -}}

{{/* The image of one program: takes the root context and its `image` value. */}}
{{- define "nvdra-cd-controller.image" -}}
{{- with .root.Values.global.imageRegistry }}{{ trimSuffix "/" . }}/{{ end -}}
{{- .image.repository }}:{{ default .root.Chart.AppVersion .image.tag -}}
{{- end -}}

{{/* As JSON: where daemons may be, the driver's namespace first. */}}
{{- define "nvdra-cd-controller.managedNamespaces" -}}
{{- prepend .Values.controller.additionalNamespaces (include "nvdra-cd-controller.namespace" .) | uniq | toJson -}}
{{- end -}}

{{- define "nvdra-cd-controller.isHostManaged" -}}
{{- if eq .Values.controller.imex.mode "hostManaged" }}true{{ end -}}
{{- end -}}

{{- define "nvdra-cd-controller.httpPort" -}}
{{- splitList ":" .Values.controller.metrics.httpEndpoint | last -}}
{{- end -}}
