{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{/* What `helm test` checks of this chart: see _installation_test.tpl. */}}
{{- define "nvdra-cd-controller.checks" -}}
{{- $deployment := dict "name" (include "nvdra.fullname" .) "namespace" (include "nvdra.namespace" .) -}}
{{- dict "apiVersions" (list "resource.nvidia.com/v1beta1") "deployments" (list $deployment) | toJson -}}
{{- end -}}
