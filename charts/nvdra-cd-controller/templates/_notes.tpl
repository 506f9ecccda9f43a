{{/* What to look at after an install; printed for a release of this chart and for one of the umbrella. */}}
{{- define "nvdra-cd-controller.notes" -}}
{{- $namespace := include "nvdra.namespace" . -}}
The controller of ComputeDomains makes what each of them needs{{ if include "nvdra.isHostManaged" . }} (the hosts run nvidia-imex: no daemons){{ end }}.

  Its pod:       kubectl -n {{ $namespace }} get pods -l app.kubernetes.io/name={{ .Chart.Name }},app.kubernetes.io/instance={{ .Release.Name }}
  {{- if not (include "nvdra.isHostManaged" .) }}
  Its daemons:   kubectl -n {{ $namespace }} get pods -l resource.nvidia.com/computeDomain -o wide
  {{- end }}

Next, a domain and the pods that use it:

  apiVersion: resource.nvidia.com/v1beta1
  kind: ComputeDomain
  metadata: {name: ring}
  spec:
    numNodes: 0                          # as many as its pods come to
    channel: {resourceClaimTemplate: {name: ring-channel}}

Pods of the same namespace refer to ring-channel by spec.resourceClaims; each gets a channel as soon as the
daemon of its own node is ready. Is it up, how many of how many, and why not:

  kubectl get computedomains
  kubectl describe computedomain ring

The definitions stay after `helm uninstall`, and with them the domains, which nobody can delete then. First:

  kubectl delete computedomains -A --all
{{- end -}}
