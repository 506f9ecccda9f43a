{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{/* Definitions that the charts of the controller and of the ComputeDomain plugin share. */}}

{{/* As JSON: the namespaces in which IMEX daemons may be, the driver's first. */}}
{{- define "nvdra.managedNamespaces" -}}
{{- prepend .Values.global.additionalNamespaces (include "nvdra.namespace" .) | uniq | toJson -}}
{{- end -}}

{{- define "nvdra.isHostManaged" -}}
{{- if eq .Values.global.imex.mode "hostManaged" }}true{{ end -}}
{{- end -}}

{{- define "nvdra.domainProblems" -}}
{{- $problems := list -}}
{{- if and (include "nvdra.isHostManaged" .) (not (get .Values.global.featureGates "HostManagedIMEXDaemon")) -}}
{{- $problems = append $problems "global.imex.mode=hostManaged needs the feature gate: global.featureGates.HostManagedIMEXDaemon=true" -}}
{{- end -}}
{{- toJson $problems -}}
{{- end -}}
