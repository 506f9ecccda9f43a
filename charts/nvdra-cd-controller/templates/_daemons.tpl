{{/* What the daemons' rights follow from. */}}

{{/* Do daemons meet in the domain's status, and not in cliques? As the gates say, the beta ones together too. */}}
{{- define "nvdra-cd-controller.isStatusMode" -}}
{{- $gates := .Values.global.featureGates -}}
{{- $all := ternary $gates.AllBeta true (hasKey $gates "AllBeta") -}}
{{- if not (ternary $gates.ComputeDomainCliques $all (hasKey $gates "ComputeDomainCliques")) }}true{{ end -}}
{{- end -}}

{{/* As JSON: the users that daemons are, in every namespace where there may be some. */}}
{{- define "nvdra-cd-controller.daemonUsers" -}}
{{- $users := list -}}
{{- range include "nvdra.managedNamespaces" . | fromJsonArray -}}
{{- $users = append $users (printf "system:serviceaccount:%s:compute-domain-daemon-service-account" .) -}}
{{- end -}}
{{- toJson $users -}}
{{- end -}}
