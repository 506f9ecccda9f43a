{{/* Definitions for the permissions of the daemons. */}}

{{/* Whether daemons are listed in the domain's status and not in cliques, according to the feature gates. */}}
{{- define "nvdra-cd-controller.isStatusMode" -}}
{{- $gates := .Values.global.featureGates -}}
{{- $all := ternary $gates.AllBeta true (hasKey $gates "AllBeta") -}}
{{- if not (ternary $gates.ComputeDomainCliques $all (hasKey $gates "ComputeDomainCliques")) }}true{{ end -}}
{{- end -}}

{{/* As JSON: the daemons' users, in every namespace in which there may be daemons. */}}
{{- define "nvdra-cd-controller.daemonUsers" -}}
{{- $users := list -}}
{{- range include "nvdra.managedNamespaces" . | fromJsonArray -}}
{{- $users = append $users (printf "system:serviceaccount:%s:compute-domain-daemon-service-account" .) -}}
{{- end -}}
{{- toJson $users -}}
{{- end -}}
