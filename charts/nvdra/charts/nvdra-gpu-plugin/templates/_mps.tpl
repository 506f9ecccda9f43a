{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{/* A regular expression of the flags of `nvdra-gpu-plugin mps-daemon`, as the plugin gives them to a daemon. */}}
{{- define "nvdra-gpu-plugin.mpsArguments" -}}
{{- $flags := list "driver-root=/driver-root" "directory=/mps" "pipe-directory=(/driver-root)?/run/nvidia-mps" "log-directory=(/driver-root)?/var/log/nvidia-mps" "ready-file=/run/nvidia-mps-ready" "run=[0-9a-f-]+" "grace-period=[0-9]+" "multi-user" "thread-percentage=[0-9]+" "memory-limit=[0-9]+=[0-9]+M" -}}
{{- join "|" $flags -}}
{{- end -}}

{{/* The priority class of MPS control daemons; empty where the plugin itself has none. */}}
{{- define "nvdra-gpu-plugin.mpsPriorityClass" -}}
{{- if .Values.kubeletPlugin.priorityClassName -}}{{ include "nvdra.fullname" . }}-mps-daemon{{- end -}}
{{- end -}}
