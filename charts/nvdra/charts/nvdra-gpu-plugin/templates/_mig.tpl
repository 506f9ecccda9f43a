{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{/*
The extended resource of a MIG profile, with the name that NVIDIA's device plugin gives it (strategy
mixed): 1g.10gb+me is nvidia.com/mig-1g.10gb.me.
*/}}
{{- define "nvdra-gpu-plugin.migResource" -}}
nvidia.com/mig-{{ replace "+" "." . }}
{{- end -}}

{{/* The class of that resource. */}}
{{- define "nvdra-gpu-plugin.migClass" -}}
{{- include "nvdra-gpu-plugin.migResource" . | trimPrefix "nvidia.com/" }}.gpu.nvidia.com
{{- end -}}

{{/* Classes that select nothing, or resources that no API server keeps, are refused. */}}
{{- define "nvdra-gpu-plugin.migProblems" -}}
{{- $problems := list -}}
{{- $setting := "deviceClasses.migExtendedResources" -}}
{{- with .Values.deviceClasses.migExtendedResources -}}
{{- if ne (include "nvdra.resourceApiVersion" $) "resource.k8s.io/v1" -}}
{{- $problems = append $problems (printf "%s needs resource.k8s.io/v1 (Kubernetes 1.34 or later): older versions have no extended resources of device classes; leave the list empty, and use claims of the device class mig.nvidia.com" $setting) -}}
{{- end -}}
{{- range . -}}
{{- if not (regexMatch "^([1-9]c[.])?[1-9]g[.][1-9][0-9]*gb([+]me|-me|[+]me[.]all|[+]gfx)?$" .) -}}
{{- $problems = append $problems (printf "%s: %q is no MIG profile: write it as nvidia-smi mig -lgip and the attribute profile of a device do, such as 1g.10gb, 3g.40gb or 1g.10gb+me, and not as the resource's name" $setting .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $problems -}}
{{- end -}}
