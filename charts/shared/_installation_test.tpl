{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{/*
What `helm test` runs: a pod that checks what an administrator would, with an account of its own whose rights
follow from the checks. Everything is deleted after a test that succeeded; a pod that failed stays until the
next test, without its account and rights.
*/}}

{{/* Annotations of an object of the test, and whether it is the pod. */}}
{{- define "nvdra.testAnnotations" -}}
helm.sh/hook: test
helm.sh/hook-weight: {{ ternary "1" "0" .isPod | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- if .isPod }}
helm.sh/hook-output-log-policy: hook-succeeded,hook-failed
{{- end }}
{{- end -}}

{{/* Labels of an object of the test: by the last one all can be deleted that a test leaves which is killed. */}}
{{- define "nvdra.testLabels" -}}
{{ include "nvdra.labels" . }}
app.kubernetes.io/component: installation-test
{{- end -}}

{{/* Rules of a role with its binding. Arguments: the root context, `name`, `namespace` (empty: of the cluster), `rules`. */}}
{{- define "nvdra.testRole" -}}
{{- $prefix := ternary "" "Cluster" (ne .namespace "") -}}
{{- $metadata := dict "name" .name "annotations" (include "nvdra.testAnnotations" (dict "isPod" false) | fromYaml) "labels" (include "nvdra.testLabels" .root | fromYaml) -}}
{{- with .namespace }}{{ $_ := set $metadata "namespace" . }}{{ end -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $prefix }}Role
metadata:
  {{- toYaml $metadata | nindent 2 }}
rules:
  {{- toYaml .rules | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $prefix }}RoleBinding
metadata:
  {{- toYaml $metadata | nindent 2 }}
subjects:
  - kind: ServiceAccount
    name: {{ .name | quote }}
    namespace: {{ include "nvdra.namespace" .root | quote }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ $prefix }}Role
  name: {{ .name | quote }}
{{- end -}}

{{/*
Arguments: the root context, the `image` of any component, `checks`: lists of deviceClasses, apiVersions,
plugins, deployments and webhooks, as nvdra-check-installation takes them, and `isRestricted`: whether the components
have network policies, so that the pod needs one where others may not connect.
*/}}
{{- define "nvdra.installationTest" -}}
{{- $name := printf "%s-test" (include "nvdra.fullname" .root | trunc 58 | trimSuffix "-") -}}
{{- $namespace := include "nvdra.namespace" .root -}}
{{- $checks := .checks -}}
{{- $placement := .root.Values.global.testPod | default dict -}}
{{- $ofCluster := list -}}
{{- with $checks.deviceClasses -}}
{{- $ofCluster = append $ofCluster (dict "apiGroups" (list "resource.k8s.io") "resources" (list "deviceclasses") "resourceNames" . "verbs" (list "get")) -}}
{{- end -}}
{{- if $checks.plugins -}}
{{- $ofCluster = append $ofCluster (dict "apiGroups" (list "resource.k8s.io") "resources" (list "resourceslices") "verbs" (list "list")) -}}
{{- /* Whether there are nodes for the plugins whose taints they do not tolerate. */}}
{{- $ofCluster = append $ofCluster (dict "apiGroups" (list "") "resources" (list "nodes") "verbs" (list "list")) -}}
{{- end -}}
{{- $byNamespace := dict -}}
{{- range $checks.plugins -}}
{{- $rule := dict "apiGroups" (list "") "resources" (list "pods" "events") "verbs" (list "list") -}}
{{- $_ := set $byNamespace .namespace (append (get $byNamespace .namespace | default list) $rule | uniq) -}}
{{- end -}}
{{- range $checks.deployments -}}
{{- $rule := dict "apiGroups" (list "apps") "resources" (list "deployments") "resourceNames" (list .name) "verbs" (list "get") -}}
{{- $_ := set $byNamespace .namespace (append (get $byNamespace .namespace | default list) $rule) -}}
{{- end -}}
{{- range $checks.webhooks -}}
{{- /* Claims of the driver's own namespace are not examined. None is stored. */}}
{{- $rule := dict "apiGroups" (list "resource.k8s.io") "resources" (list "resourceclaims") "verbs" (list "create") -}}
{{- $_ := set $byNamespace .claimNamespace (append (get $byNamespace .claimNamespace | default list) $rule) -}}
{{- end -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ $name | quote }}
  namespace: {{ $namespace | quote }}
  labels:
    {{- include "nvdra.testLabels" .root | nindent 4 }}
  annotations:
    {{- include "nvdra.testAnnotations" (dict "isPod" false) | nindent 4 }}
{{- with $ofCluster }}
---
{{ include "nvdra.testRole" (dict "root" $.root "name" $name "namespace" "" "rules" .) }}
{{- end }}
{{- range $place, $rules := $byNamespace }}
---
{{ include "nvdra.testRole" (dict "root" $.root "name" $name "namespace" $place "rules" $rules) }}
{{- end }}
{{- if .isRestricted }}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ $name | quote }}
  namespace: {{ $namespace | quote }}
  labels:
    {{- include "nvdra.testLabels" .root | nindent 4 }}
  annotations:
    {{- include "nvdra.testAnnotations" (dict "isPod" false) | nindent 4 }}
spec:
  podSelector:
    matchLabels:
      app.kubernetes.io/name: {{ $name | quote }}
  policyTypes: [Ingress, Egress]
  egress:
    {{- include "nvdra.apiServerEgress" .root | nindent 4 }}
{{- end }}
---
# Not in the pod: what is checked follows from the values, and a pod cannot be changed (helm template | kubectl apply).
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ $name | quote }}
  namespace: {{ $namespace | quote }}
  labels:
    {{- include "nvdra.testLabels" .root | nindent 4 }}
  annotations:
    {{- include "nvdra.testAnnotations" (dict "isPod" false) | nindent 4 }}
data:
  checks: {{ toJson $checks | quote }}
---
apiVersion: v1
kind: Pod
metadata:
  name: {{ $name | quote }}
  namespace: {{ $namespace | quote }}
  # None of the labels by which a component's pods are selected.
  labels:
    app.kubernetes.io/name: {{ $name | quote }}
    app.kubernetes.io/part-of: nvdra
    app.kubernetes.io/component: installation-test
  annotations:
    {{- include "nvdra.testAnnotations" (dict "isPod" true) | nindent 4 }}
spec:
  restartPolicy: Never
  serviceAccountName: {{ $name | quote }}
  {{- with .root.Values.global.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  nodeSelector:
    {{- include "nvdra.nodeSelector" $placement.nodeSelector | nindent 4 }}
  {{- with ternary $placement.tolerations (list (dict "key" "nvidia.com/gpu" "operator" "Exists" "effect" "NoSchedule")) (hasKey $placement "tolerations") }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    {{- if not (.root.Capabilities.APIVersions.Has "security.openshift.io/v1/SecurityContextConstraints") }}
    runAsUser: 65532
    runAsGroup: 65532
    {{- end }}
    seccompProfile: {type: RuntimeDefault}
  containers:
    - name: test
      image: {{ .image | quote }}
      imagePullPolicy: {{ .root.Values.global.imagePullPolicy | quote }}
      command: [/opt/nvdra/bin/nvdra-check-installation]
      env:
        - name: CHECKS
          valueFrom: {configMapKeyRef: {name: {{ $name | quote }}, key: checks}}
        # Enough after `helm install` without --wait; a failure is reported when it has passed.
        - name: TIMEOUT
          value: 30s
        # Keeps NVIDIA's container runtime from giving this container GPUs of its own accord.
        - name: NVIDIA_VISIBLE_DEVICES
          value: void
      securityContext:
        privileged: false
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: {drop: [ALL]}
      resources:
        {{- $placement.resources | default (dict "requests" (dict "cpu" "10m" "memory" "64Mi") "limits" (dict "memory" "256Mi")) | toYaml | nindent 8 }}
{{- end -}}

{{/* A plugin, for `checks`. Arguments: the root context and its `driver`. */}}
{{- define "nvdra.testPlugin" -}}
{{- $selector := printf "app.kubernetes.io/name=%s,app.kubernetes.io/instance=%s" .root.Chart.Name .root.Release.Name -}}
{{- $plugin := .root.Values.kubeletPlugin -}}
{{- $above := ternary "" (printf "%s." .root.Chart.Name) .root.Chart.IsRoot -}}
{{- $placement := dict "nodeSelector" (include "nvdra.nodeSelector" $plugin.nodeSelector | fromYaml) "terms" (include "nvdra.nodeSelectorTerms" .root | fromJsonArray) "tolerations" ($plugin.tolerations | default list) "setting" (printf "%skubeletPlugin.tolerations" $above) -}}
{{- dict "program" .root.Chart.Name "driver" .driver "namespace" (include "nvdra.namespace" .root) "selector" $selector "daemonset" (include "nvdra.fullname" .root) "placement" $placement | toJson -}}
{{- end -}}
