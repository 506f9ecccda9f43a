{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{/* What `helm test` checks of this chart: see _installation_test.tpl. */}}
{{- define "nvdra-cd-plugin.checks" -}}
{{- $classes := list "compute-domain-default-channel.nvidia.com" -}}
{{- if not (include "nvdra.isHostManaged" .) -}}
{{- $classes = append $classes "compute-domain-daemon.nvidia.com" -}}
{{- end -}}
{{- dict "deviceClasses" $classes "plugins" (list (include "nvdra.testPlugin" (dict "root" . "driver" "compute-domain.nvidia.com") | fromJson)) | toJson -}}
{{- end -}}
