{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{/* All that is wrong with the values, as a JSON list. */}}
{{- define "nvdra-cd-controller.problems" -}}
{{- $places := dict "MAX_NODES_PER_IMEX_DOMAIN" "controller.maxNodesPerImexDomain" "ADDITIONAL_NAMESPACES" "global.additionalNamespaces" "CD_DAEMON_IMAGE_PULL_SECRET_NAMES" "global.imagePullSecrets" "LOG_VERBOSITY_CD_DAEMON" "daemon.logVerbosity" "FEATURE_GATES" "global.featureGates" "V" "global.logVerbosity" -}}
{{- concat
    (include "nvdra.globalProblems" (dict "root" . "known" (list "featureGates" "logVerbosity" "loggingFormat" "imageRegistry" "imagePullPolicy" "imagePullSecrets" "allowDefaultNamespace" "admittedByOthers" "apiServerPorts" "testPod" "podMonitors" "otlp" "imex" "additionalNamespaces")) | fromJsonArray)
    (ternary (include "nvdra.conditionProblems" .Values) "[]" .Chart.IsRoot | fromJsonArray)
    (include "nvdra.gateProblems" . | fromJsonArray)
    (include "nvdra.imageProblems" . | fromJsonArray)
    (include "nvdra.installationProblems" (dict "root" . "rights" "may write claim templates everywhere") | fromJsonArray)
    (include "nvdra.domainProblems" . | fromJsonArray)
    (include "nvdra.portProblems" (dict "setting" "controller.metrics.httpEndpoint" "address" .Values.controller.metrics.httpEndpoint "env" .Values.controller.env) | fromJsonArray)
    (include "nvdra.portProblems" (dict "setting" "daemon.metrics.httpEndpoint" "address" .Values.daemon.metrics.httpEndpoint "env" (list)) | fromJsonArray)
    (include "nvdra.environmentProblems" (dict "setting" "controller.env" "env" .Values.controller.env "own" (include "nvdra-cd-controller.ownEnvironment" .) "places" $places) | fromJsonArray)
  | toJson -}}
{{- end -}}
