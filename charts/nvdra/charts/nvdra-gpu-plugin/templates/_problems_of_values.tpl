{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{/* All that is wrong with the values, as a JSON list. */}}
{{- define "nvdra-gpu-plugin.problems" -}}
{{- $plugin := .Values.kubeletPlugin -}}
{{- concat
    (include "nvdra.globalProblems" (dict "root" . "known" (list "nvidiaDriverRoot" "nvidiaCDIHookPath" "procRoot" "sysRoot" "devRoot" "featureGates" "logVerbosity" "loggingFormat" "imageRegistry" "imagePullPolicy" "imagePullSecrets" "resourceApiVersion" "allowDefaultNamespace" "admittedByOthers" "apiServerPorts" "testPod" "podMonitors" "otlp")) | fromJsonArray)
    (ternary (include "nvdra.conditionProblems" .Values) "[]" .Chart.IsRoot | fromJsonArray)
    (include "nvdra.gateProblems" . | fromJsonArray)
    (include "nvdra.imageProblems" . | fromJsonArray)
    (include "nvdra.nodeProblems" . | fromJsonArray)
    (include "nvdra.deviceClassProblems" (dict "root" . "names" (include "nvdra-gpu-plugin.deviceClasses" . | fromJsonArray)) | fromJsonArray)
    (include "nvdra-gpu-plugin.shareProblems" . | fromJsonArray)
    (include "nvdra-gpu-plugin.migProblems" . | fromJsonArray)
    (include "nvdra.portProblems" (dict "setting" "kubeletPlugin.metrics.gpuHttpEndpoint" "address" $plugin.metrics.gpuHttpEndpoint "env" $plugin.containers.gpus.env) | fromJsonArray)
    (include "nvdra.environmentProblems" (dict "setting" "kubeletPlugin.containers.gpus.env" "env" $plugin.containers.gpus.env "own" (include "nvdra-gpu-plugin.ownEnvironment" .) "places" (include "nvdra.nodePlaces" . | fromJson)) | fromJsonArray)
  | toJson -}}
{{- end -}}

{{/* The names of the classes that this chart creates, as a JSON list. */}}
{{- define "nvdra-gpu-plugin.deviceClasses" -}}
{{- $names := list -}}
{{- if include "nvdra.createsDeviceClasses" . -}}
{{- $names = list "gpu.nvidia.com" "mig.nvidia.com" "vfio.gpu.nvidia.com" -}}
{{- range (.Values.deviceClasses | default dict).migExtendedResources -}}
{{- $names = append $names (include "nvdra-gpu-plugin.migClass" .) -}}
{{- end -}}
{{- end -}}
{{- toJson $names -}}
{{- end -}}

{{/* Whether an alpha gate is on: by its name, or by AllAlpha if it has no entry of its own. */}}
{{- define "nvdra-gpu-plugin.isAlphaOn" -}}
{{- if get .gates .name | default (and (get .gates "AllAlpha") (not (hasKey .gates .name))) }}true{{ end -}}
{{- end -}}

{{/* How devices are shared; empty if each is for one claim. */}}
{{- define "nvdra-gpu-plugin.shares" -}}
{{- $shares := .Values.kubeletPlugin.consumableShares | default "disabled" | toString -}}
{{- if ne $shares "disabled" }}{{ $shares }}{{ end -}}
{{- end -}}

{{- define "nvdra-gpu-plugin.shareProblems" -}}
{{- $shares := include "nvdra-gpu-plugin.shares" . -}}
{{- $gates := .Values.global.featureGates | default dict -}}
{{- $problems := list -}}
{{- if and $shares (not (include "nvdra-gpu-plugin.isAlphaOn" (dict "gates" $gates "name" "ConsumableShares"))) -}}
{{- $problems = append $problems (printf "kubeletPlugin.consumableShares=%s needs the feature gate: global.featureGates.ConsumableShares=true" $shares) -}}
{{- end -}}
{{- toJson $problems -}}
{{- end -}}
