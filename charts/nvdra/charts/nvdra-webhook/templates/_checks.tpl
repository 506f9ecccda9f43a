{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{/* What `helm test` checks of this chart: see _installation_test.tpl. */}}
{{- define "nvdra-webhook.checks" -}}
{{- $name := include "nvdra.fullname" . -}}
{{- $namespace := include "nvdra.namespace" . -}}
{{- $deployment := dict "name" $name "namespace" $namespace -}}
{{- $selector := printf "app.kubernetes.io/name=%s,app.kubernetes.io/instance=%s" .Chart.Name .Release.Name -}}
{{- /* Claims of the driver's own namespace are not examined; these two namespaces are in every cluster. */}}
{{- $claims := ternary "kube-public" "default" (eq $namespace "default") -}}
{{- $webhook := dict "registration" (printf "%s-config" $name) "claimNamespace" $claims "namespace" $namespace "selector" $selector -}}
{{- dict "deployments" (list $deployment) "webhooks" (list $webhook) | toJson -}}
{{- end -}}
