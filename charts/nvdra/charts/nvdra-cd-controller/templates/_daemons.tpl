{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{/* Definitions for the daemons: their image, and their permissions. */}}

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

{{/* The daemons' image. Its tag is that of the release with which the chart was tested. */}}
{{- define "nvdra-cd-controller.daemonImage" -}}
{{- $tag := default (index .Chart.Annotations "nvdra-imex-daemon") .Values.daemon.image.tag -}}
{{- include "nvdra.image" (dict "root" . "image" (dict "repository" .Values.daemon.image.repository "tag" $tag "digest" .Values.daemon.image.digest)) -}}
{{- end -}}

{{/*
As JSON: what the daemons of every domain may do besides connecting to one another. The controller gives each
domain its NetworkPolicy, because a selector cannot say "of the same domain".
*/}}
{{- define "nvdra-cd-controller.daemonNetworkRules" -}}
{{- $ingress := list -}}
{{- if .Values.daemon.metrics.enabled -}}
{{- $ingress = include "nvdra.metricsIngress" (list .Values.daemon.metrics.httpEndpoint .Values.daemon.networkPolicy.metricsFrom) | fromYamlArray -}}
{{- end -}}
{{- /* nvidia-imex asks for the names of its peers. The hosts file has them all; a question that gets no answer
would cost it seconds. */ -}}
{{- $names := dict "ports" (list (dict "protocol" "UDP" "port" 53) (dict "protocol" "TCP" "port" 53)) -}}
{{- dict "ingress" $ingress "egress" (prepend (include "nvdra.egress" . | fromYamlArray) $names) | toJson -}}
{{- end -}}

{{/* A regular expression of the environment variables that the controller gives to daemons. */}}
{{- define "nvdra-cd-controller.daemonVariables" -}}
{{- list "NODE_NAME" "POD_(IP|UID|NAME|NAMESPACE)" "LOG_VERBOSITY" "MAX_NODES_PER_IMEX_DOMAIN" "CLIQUE_WRITER" "PEER_NAMES" "NVIDIA_VISIBLE_DEVICES" "FEATURE_GATES" "LOGGING_FORMAT" "HTTP_ENDPOINT" "OTEL_[A-Z_]+" | join "|" -}}
{{- end -}}
