{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{/* The notes after an installation of this chart or of the umbrella chart. */}}
{{- define "nvdra-cd-plugin.notes" -}}
{{- $namespace := include "nvdra.namespace" . -}}
The DRA driver compute-domain.nvidia.com lets the pods of a ComputeDomain share their GPUs' memory over
NVLink, on one or several nodes.

  Pods:          kubectl -n {{ $namespace }} get pods -l app.kubernetes.io/name={{ .Chart.Name }},app.kubernetes.io/instance={{ .Release.Name }} -o wide
  {{- if eq .Values.kubeletPlugin.updateStrategy.type "RollingUpdate" }}
  All ready:     kubectl -n {{ $namespace }} rollout status daemonset {{ include "nvdra.fullname" . }}
  {{- end }}
  Channels:      kubectl get resourceslices -o wide
  A stuck pod:   kubectl describe computedomain DOMAIN says which nodes are not ready and why; see also kubectl describe pod POD

{{- if and (eq .Values.kubeletPlugin.updateStrategy.type "RollingUpdate") (not (include "nvdra.isSurging" .)) }}
With maxUnavailable, `helm --wait` leaves out as many pods, at least one; the command above waits for all.
{{- end }}
If a pod of the driver is not ready, see kubectl -n {{ $namespace }} exec POD -- {{ .Chart.Name }} status, and its log.

Before `helm uninstall`, delete all domains, as the controller must delete what belongs to them:

  kubectl delete computedomains -A --all
{{- end -}}
