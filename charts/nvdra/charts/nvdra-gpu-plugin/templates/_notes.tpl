{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{/* Columns for kubectl that show which pods use which claims. */}}
{{- define "nvdra-gpu-plugin.holders" -}}
NAMESPACE:.metadata.namespace,PODS:.status.reservedFor[*].name,CLAIM:.metadata.name,DRIVERS:.status.allocation.devices.results[*].driver
{{- end -}}

{{/* The notes after an installation of this chart or of the umbrella chart. */}}
{{- define "nvdra-gpu-plugin.notes" -}}
{{- $namespace := include "nvdra.namespace" . -}}
The DRA driver gpu.nvidia.com serves the nodes that have NVIDIA GPUs.

  Pods:          kubectl -n {{ $namespace }} get pods -l app.kubernetes.io/name={{ .Chart.Name }},app.kubernetes.io/instance={{ .Release.Name }} -o wide
  {{- if eq .Values.kubeletPlugin.updateStrategy.type "RollingUpdate" }}
  All ready:     kubectl -n {{ $namespace }} rollout status daemonset {{ include "nvdra.fullname" . }}
  {{- end }}
  Devices:       kubectl get resourceslices
  Classes:       kubectl get deviceclasses
  Traces:        kubectl -n {{ $namespace }} port-forward POD 6060, then open http://localhost:6060/debug/traces

{{- if and (eq .Values.kubeletPlugin.updateStrategy.type "RollingUpdate") (not (include "nvdra.isSurging" .)) }}
With maxUnavailable, `helm --wait` leaves out as many pods, at least one; the command above waits for all.
{{- end }}
If a pod is not ready, see kubectl -n {{ $namespace }} exec POD -- {{ .Chart.Name }} status, and its log.

Before `helm uninstall`, delete the pods that use a GPU. Pods that are still running keep running with their GPUs, but
when they are deleted, they stay Terminating until the driver is installed again. To list their claims:

  kubectl get resourceclaims -A -o 'custom-columns={{ include "nvdra-gpu-plugin.holders" . }}' | grep gpu.nvidia.com

WARNING: do not run NVIDIA's device plugin (nor the GPU Operator's) on the same nodes. It does not know
claims, so that it and this driver could give the same GPU to two pods. Keep it off these nodes, or remove it:
the resource {{ default "nvidia.com/gpu" .Values.deviceClasses.extendedResourceName }} in a pod's limits
{{- if and .Values.deviceClasses.extendedResourceName (eq (include "nvdra.resourceApiVersion" .) "resource.k8s.io/v1") }}
is then served by the device class gpu.nvidia.com. That needs the
gate DRAExtendedResource: on by default from 1.36, alpha (off) in 1.34 and 1.35.
{{- else }}
is then not available; pods use claims of the device class gpu.nvidia.com.
{{- end }}
{{- if and (include "nvdra-gpu-plugin.shares" .) (include "nvdra-gpu-plugin.isAlphaOn" (dict "gates" (.Values.global.featureGates | default dict) "name" "MPSSupport")) }}

WARNING: claims that ask for MPS are refused with InvalidConfig, because each device has shares
(kubeletPlugin.consumableShares={{ include "nvdra-gpu-plugin.shares" . }}). For MPS, set it to disabled.
{{- end }}
{{- with .Values.deviceClasses.migExtendedResources }}

With the same gate, pods get a MIG device without a claim by the resources
{{- range . }}
  {{ include "nvdra-gpu-plugin.migResource" . }}
{{- end }}
The scheduler gives a pod such a device only on nodes where no device plugin offers the same resource.
{{- end }}
{{- end -}}
