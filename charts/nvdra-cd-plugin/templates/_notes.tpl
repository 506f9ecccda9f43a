{{/* What to look at after an install; printed for a release of this chart and for one of the umbrella. */}}
{{- define "nvdra-cd-plugin.notes" -}}
{{- $namespace := include "nvdra.namespace" . -}}
The DRA driver compute-domain.nvidia.com lets pods of one ComputeDomain share their GPUs' memory over
NVLink, on one node or on many.

  Its pods:      kubectl -n {{ $namespace }} get pods -l app.kubernetes.io/name={{ .Chart.Name }},app.kubernetes.io/instance={{ .Release.Name }} -o wide
  The channels:  kubectl get resourceslices -o wide
  A stuck pod:   kubectl describe computedomain DOMAIN says which node lacks what; then kubectl describe pod POD

A pod of the driver that is not ready says why: kubectl -n {{ $namespace }} exec POD -- {{ .Chart.Name }} status, and its log.

Before `helm uninstall`, while there is somebody to take away what they made:

  kubectl delete computedomains -A --all
{{- end -}}
