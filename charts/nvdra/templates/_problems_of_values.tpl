{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{/* All that is wrong with the values of this chart and of its parts, as a JSON list. */}}
{{- define "nvdra.problems" -}}
{{- $problems := include "nvdra.globalProblems" (dict "root" . "known" (list "nvidiaDriverRoot" "nvidiaCDIHookPath" "procRoot" "sysRoot" "devRoot" "featureGates" "logVerbosity" "loggingFormat" "imageRegistry" "imagePullPolicy" "imagePullSecrets" "resourceApiVersion" "allowDefaultNamespace" "admittedByOthers" "apiServerPorts" "testPod" "podMonitors" "otlp" "imex" "additionalNamespaces")) | fromJsonArray -}}
{{- if .Chart.IsRoot -}}
{{- $problems = include "nvdra.conditionProblems" .Values | fromJsonArray | concat $problems -}}
{{- end -}}
{{- $names := dict -}}
{{- if and .Chart.IsRoot (index .Values "nvdra-webhook") -}}
{{- $problems = append $problems "nvdra-webhook: set as webhook, where the reference driver has these values" -}}
{{- end -}}
{{- range $chart := list "nvdra-gpu-plugin" "nvdra-cd-plugin" "nvdra-cd-controller" "nvdra-webhook" -}}
{{- $part := ternary "webhook" $chart (eq $chart "nvdra-webhook") -}}
{{- with $root := get $.Subcharts $part -}}
{{- $ofCondition := ternary "[]" (include "nvdra.conditionProblems" $root.Values) (eq $part "webhook") | fromJsonArray -}}
{{- range include (printf "%s.problems" $chart) $root | fromJsonArray | concat $ofCondition -}}
{{- $problem := regexReplaceAll "set (controller|kubeletPlugin|daemon)[.]" . (printf "set %s.${1}." $part) -}}
{{- $isOfAll := regexMatch "^(global|this cluster|the namespace)" . -}}
{{- $problems = append $problems (ternary $problem (printf "%s.%s" $part $problem) $isOfAll) -}}
{{- end -}}
{{- $name := include "nvdra.fullname" $root -}}
{{- if hasKey $names $name -}}
{{- $problems = append $problems (printf "%s and %s would both be named %s: a nameOverride or fullnameOverride must be another one in each of them" (get $names $name) $part $name) -}}
{{- end -}}
{{- $_ := set $names $name $part -}}
{{- end -}}
{{- end -}}
{{- with $plugin := index .Subcharts "nvdra-gpu-plugin" -}}
{{- $override := or $.Values.gpuResourcesEnabledOverride $plugin.Values.gpuResourcesEnabledOverride -}}
{{- $beside := include "nvdra.devicePluginProblems" (dict "root" $plugin "override" $override) -}}
{{- $problems = regexReplaceAll "kubeletPlugin[.]" $beside "nvdra-gpu-plugin.kubeletPlugin." | fromJsonArray | concat $problems -}}
{{- end -}}
{{- with $controller := index .Subcharts "nvdra-cd-controller" -}}
{{- $home := include "nvdra.namespace" $controller -}}
{{- with .Subcharts.webhook -}}
{{- $known := include "nvdra-webhook.controllerAccount" . -}}
{{- $account := include "nvdra.serviceAccountName" $controller -}}
{{- if ne $known $account -}}
{{- $problems = append $problems (printf "webhook.controllerServiceAccountName: the webhook would examine what the controller writes, whose account is %s and not %s: set it" $account $known) -}}
{{- end -}}
{{- end -}}
{{- $reasons := dict "nvdra-cd-plugin" "could not find each other" "webhook" "claims of IMEX daemons would need the webhook" -}}
{{- range $part, $reason := $reasons -}}
{{- with $root := get $.Subcharts $part -}}
{{- $namespace := include "nvdra.namespace" $root -}}
{{- if ne $namespace $home -}}
{{- $problems = append $problems (printf "%s would be in the namespace %s and nvdra-cd-controller in %s, and %s: set the same namespaceOverride in both" $part $namespace $home $reason) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $problems -}}
{{- end -}}
