{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{/* All that is wrong with the values, as a JSON list. */}}
{{- define "nvdra-cd-plugin.problems" -}}
{{- $plugin := .Values.kubeletPlugin -}}
{{- concat
    (include "nvdra.globalProblems" (dict "root" . "known" (list "nvidiaDriverRoot" "nvidiaCDIHookPath" "procRoot" "sysRoot" "devRoot" "featureGates" "logVerbosity" "loggingFormat" "imageRegistry" "imagePullPolicy" "imagePullSecrets" "resourceApiVersion" "allowDefaultNamespace" "admittedByOthers" "apiServerPorts" "testPod" "podMonitors" "otlp" "imex" "additionalNamespaces")) | fromJsonArray)
    (ternary (include "nvdra.conditionProblems" .Values) "[]" .Chart.IsRoot | fromJsonArray)
    (include "nvdra.gateProblems" . | fromJsonArray)
    (include "nvdra.imageProblems" . | fromJsonArray)
    (include "nvdra.nodeProblems" . | fromJsonArray)
    (include "nvdra.deviceClassProblems" (dict "root" . "names" (include "nvdra-cd-plugin.deviceClasses" . | fromJsonArray)) | fromJsonArray)
    (include "nvdra.domainProblems" . | fromJsonArray)
    (include "nvdra.portProblems" (dict "setting" "kubeletPlugin.metrics.computeDomainHttpEndpoint" "address" $plugin.metrics.computeDomainHttpEndpoint "env" $plugin.containers.computeDomains.env) | fromJsonArray)
    (include "nvdra.environmentProblems" (dict "setting" "kubeletPlugin.containers.computeDomains.env" "env" $plugin.containers.computeDomains.env "own" (include "nvdra-cd-plugin.ownEnvironment" .) "places" (include "nvdra.nodePlaces" . | fromJson)) | fromJsonArray)
  | toJson -}}
{{- end -}}

{{/* The names of the classes that this chart creates, as a JSON list. */}}
{{- define "nvdra-cd-plugin.deviceClasses" -}}
{{- $names := list -}}
{{- if include "nvdra.createsDeviceClasses" . -}}
{{- $names = list "compute-domain-default-channel.nvidia.com" -}}
{{- if (.Values.deviceClasses | default dict).computeDomainAlias -}}
{{- $names = append $names "computedomain.nvidia.com" -}}
{{- end -}}
{{- if not (include "nvdra.isHostManaged" .) -}}
{{- $names = append $names "compute-domain-daemon.nvidia.com" -}}
{{- end -}}
{{- end -}}
{{- toJson $names -}}
{{- end -}}
