{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{/* The notes after an installation of this chart or of the umbrella chart. */}}
{{- define "nvdra-cd-controller.notes" -}}
{{- $namespace := include "nvdra.namespace" . -}}
The controller creates the daemons and claim templates of each ComputeDomain{{ if include "nvdra.isHostManaged" . }} (no daemons here: the hosts run nvidia-imex){{ end }}.

  Pods:          kubectl -n {{ $namespace }} get pods -l app.kubernetes.io/name={{ .Chart.Name }},app.kubernetes.io/instance={{ .Release.Name }}
  {{- if not (include "nvdra.isHostManaged" .) }}
  Daemons:       kubectl -n {{ $namespace }} get pods -l resource.nvidia.com/computeDomain -o wide
  {{- end }}

Next, create a domain and the pods that use it:

  apiVersion: resource.nvidia.com/v1beta1
  kind: ComputeDomain
  metadata: {name: ring}
  spec:
    numNodes: 0                          # any number of nodes
    channel: {resourceClaimTemplate: {name: ring-channel}}

Pods of the same namespace refer to ring-channel in spec.resourceClaims. Each gets a channel as soon as the
daemon of its own node is ready. To see whether the domain is ready, and if not, why:

  kubectl get computedomains
  kubectl describe computedomain ring

`helm uninstall` leaves the CRDs and the domains, which cannot be deleted without the controller; another release goes
on with them. To delete the domains first:

  kubectl delete computedomains -A --all
{{- end -}}
