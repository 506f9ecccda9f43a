{{/* Names, labels and derived values. Every object of the chart is called as `fullname` says. */}}

{{- define "nvdra-gpu-plugin.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "nvdra-gpu-plugin.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride -}}
{{- end -}}

{{/* The one source of the account's name: for the pods, the role binding and the admission policy. */}}
{{- define "nvdra-gpu-plugin.serviceAccountName" -}}
{{- default (include "nvdra-gpu-plugin.fullname" .) .Values.serviceAccount.name -}}
{{- end -}}

{{/* A DaemonSet's selector cannot change, so nothing but the release's name may enter it. */}}
{{- define "nvdra-gpu-plugin.selectorLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "nvdra-gpu-plugin.labels" -}}
{{ include "nvdra-gpu-plugin.selectorLabels" . }}
app.kubernetes.io/part-of: nvdra
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "nvdra-gpu-plugin.image" -}}
{{- with .Values.global.imageRegistry }}{{ trimSuffix "/" . }}/{{ end -}}
{{- .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag -}}
{{- end -}}

{{/* `A=true,B=false`, sorted by name; empty without gates. */}}
{{- define "nvdra-gpu-plugin.featureGates" -}}
{{- $gates := list -}}
{{- range $name, $on := .Values.global.featureGates -}}
{{- $gates = append $gates (printf "%s=%t" $name $on) -}}
{{- end -}}
{{- join "," $gates -}}
{{- end -}}

{{/* Group and version of the device classes; empty where the cluster serves none. */}}
{{- define "nvdra-gpu-plugin.resourceApiVersion" -}}
{{- $served := list -}}
{{- range list "v1" "v1beta2" "v1beta1" -}}
{{- $version := printf "resource.k8s.io/%s" . -}}
{{- if $.Capabilities.APIVersions.Has $version -}}
{{- $served = append $served $version -}}
{{- end -}}
{{- end -}}
{{- default (append $served "" | first) .Values.global.resourceApiVersion -}}
{{- end -}}

{{- define "nvdra-gpu-plugin.httpPort" -}}
{{- splitList ":" .Values.kubeletPlugin.metrics.gpuHttpEndpoint | last -}}
{{- end -}}

{{/* As JSON: the node's file systems whose place was changed, each with the name of its volume. */}}
{{- define "nvdra-gpu-plugin.movedRoots" -}}
{{- $moved := list -}}
{{- range tuple (list "proc" "/proc") (list "sys" "/sys") (list "dev" "/dev") -}}
{{- $path := index $.Values.global (printf "%sRoot" (first .)) | clean -}}
{{- if ne $path (last .) -}}
{{- $moved = append $moved (dict "volume" (printf "%s-root" (first .)) "path" $path) -}}
{{- end -}}
{{- end -}}
{{- toJson $moved -}}
{{- end -}}
