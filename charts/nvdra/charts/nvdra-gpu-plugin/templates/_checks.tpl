{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{/* What `helm test` checks of this chart: see _installation_test.tpl. */}}
{{- define "nvdra-gpu-plugin.checks" -}}
{{- $classes := list "gpu.nvidia.com" "mig.nvidia.com" "vfio.gpu.nvidia.com" -}}
{{- range .Values.deviceClasses.migExtendedResources -}}
{{- $classes = append $classes (printf "%s.gpu.nvidia.com" (include "nvdra-gpu-plugin.migResource" . | trimPrefix "nvidia.com/")) -}}
{{- end -}}
{{- dict "deviceClasses" $classes "plugins" (list (include "nvdra.testPlugin" (dict "root" . "driver" "gpu.nvidia.com") | fromJson)) | toJson -}}
{{- end -}}
