{{/* Columns of kubectl that say which pods hold which claims. */}}
{{- define "nvdra-gpu-plugin.holders" -}}
NAMESPACE:.metadata.namespace,PODS:.status.reservedFor[*].name,CLAIM:.metadata.name,DRIVERS:.status.allocation.devices.results[*].driver
{{- end -}}

{{/* What to look at after an install; printed for a release of this chart and for one of the umbrella. */}}
{{- define "nvdra-gpu-plugin.notes" -}}
{{- $namespace := include "nvdra.namespace" . -}}
The DRA driver gpu.nvidia.com serves the nodes that carry NVIDIA GPUs.

  Its pods:      kubectl -n {{ $namespace }} get pods -l app.kubernetes.io/name={{ .Chart.Name }},app.kubernetes.io/instance={{ .Release.Name }} -o wide
  The devices:   kubectl get resourceslices
  The classes:   kubectl get deviceclasses
  Its traces:    kubectl -n {{ $namespace }} port-forward POD 6060, for one of them, then http://localhost:6060/debug/traces

A pod that is not ready says why: kubectl -n {{ $namespace }} exec POD -- {{ .Chart.Name }} status, and its log.

Before `helm uninstall`: pods that hold a GPU go on without the driver and keep it, but once deleted they
stay Terminating until the driver is installed again, for nobody takes the GPU back from them. They are:

  kubectl get resourceclaims -A -o 'custom-columns={{ include "nvdra-gpu-plugin.holders" . }}' | grep gpu.nvidia.com

WARNING: do not run NVIDIA's device plugin (nor the GPU Operator's) on the same nodes. It knows nothing of
claims, so it and this driver would hand one GPU to two pods. Keep it off by a node label, or remove it:
the resource {{ default "nvidia.com/gpu" .Values.deviceClasses.extendedResourceName }} in a pod's limits
{{- if and .Values.deviceClasses.extendedResourceName (eq (include "nvdra.resourceApiVersion" .) "resource.k8s.io/v1") }}
is then served by the device class gpu.nvidia.com. That needs the
gate DRAExtendedResource: on by default from 1.36, alpha (off) in 1.34 and 1.35.
{{- else }}
is then not served; pods ask by a claim of the device class gpu.nvidia.com.
{{- end }}
{{- end -}}
