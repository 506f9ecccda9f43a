{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{/* Definitions that the charts of the node plugins share: directories, mounts, the version of device classes. */}}

{{/*
Group and version of the device classes; empty if the cluster serves none. Without a cluster, helm names the versions of
its own libraries, and no kinds: then the Kubernetes version decides (--kube-version).
*/}}
{{- define "nvdra.resourceApiVersion" -}}
{{- $served := list -}}
{{- range tuple (list "v1" "1.34") (list "v1beta2" "1.33") (list "v1beta1" "1.32") -}}
{{- $name := printf "resource.k8s.io/%s" (first .) -}}
{{- $isServed := $.Capabilities.APIVersions.Has $name -}}
{{- if not ($.Capabilities.APIVersions.Has "v1/Namespace") -}}
{{- $isServed = semverCompare (printf ">=%s.0-0" (last .)) $.Capabilities.KubeVersion.Version -}}
{{- end -}}
{{- if $isServed }}{{ $served = append $served $name }}{{ end -}}
{{- end -}}
{{- default (append $served "" | first) .Values.global.resourceApiVersion -}}
{{- end -}}

{{/* As JSON: the file systems of the node in other directories than the default, each with its volume's name. */}}
{{- define "nvdra.movedRoots" -}}
{{- $moved := list -}}
{{- range tuple (list "proc" "/proc") (list "sys" "/sys") (list "dev" "/dev") -}}
{{- $path := index $.Values.global (printf "%sRoot" (first .)) | clean -}}
{{- if ne $path (last .) -}}
{{- $moved = append $moved (dict "volume" (printf "%s-root" (first .)) "path" $path) -}}
{{- end -}}
{{- end -}}
{{- toJson $moved -}}
{{- end -}}

{{/*
The driver root as the plugin's container sees it. What is mounted there is the root's parent: a driver
container mounts its files on the root itself, and when it is replaced, another mount takes that place. A copy
of the root would keep the first mount for ever.
*/}}
{{- define "nvdra.driverRootInContainer" -}}
{{- clean (printf "/driver-root/%s" (clean .Values.global.nvidiaDriverRoot | base)) -}}
{{- end -}}

{{/* The directories of the node, as environment variables of every node plugin. */}}
{{- define "nvdra.nodeEnvironment" -}}
- name: NODE_NAME
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_UID
  valueFrom: {fieldRef: {fieldPath: metadata.uid}}
- name: NVIDIA_DRIVER_ROOT
  value: {{ clean .Values.global.nvidiaDriverRoot | quote }}
- name: DRIVER_ROOT_CTR_PATH
  value: {{ include "nvdra.driverRootInContainer" . | quote }}
- name: PROC_ROOT
  value: {{ clean .Values.global.procRoot | quote }}
- name: SYS_ROOT
  value: {{ clean .Values.global.sysRoot | quote }}
- name: DEV_ROOT
  value: {{ clean .Values.global.devRoot | quote }}
{{- with .Values.global.nvidiaCDIHookPath }}
- name: NVIDIA_CDI_HOOK_PATH
  value: {{ . | quote }}
{{- end }}
- name: CDI_ROOT
  value: /var/run/cdi
- name: KUBELET_REGISTRAR_DIRECTORY_PATH
  value: {{ .Values.kubeletPlugin.kubeletRegistrarDirectoryPath | quote }}
- name: KUBELET_PLUGINS_DIRECTORY_PATH
  value: {{ .Values.kubeletPlugin.kubeletPluginsDirectoryPath | quote }}
- name: LOGGING_FORMAT
  value: {{ .Values.global.loggingFormat | default "json" | quote }}
- name: V
  value: {{ .Values.global.logVerbosity | toString | quote }}
{{- with include "nvdra.featureGates" . }}
- name: FEATURE_GATES
  value: {{ . | quote }}
{{- end }}
{{- with .Values.global.otlp.endpoint }}
- name: OTEL_EXPORTER_OTLP_ENDPOINT
  value: {{ . | quote }}
{{- end }}
# Keeps NVIDIA's container runtime from giving this container GPUs of its own accord.
- name: NVIDIA_VISIBLE_DEVICES
  value: void
{{- end -}}

{{/* The fields of a plugin's pod that are set by values: account, priority, scheduling. */}}
{{- define "nvdra.podFields" -}}
{{- $plugin := .Values.kubeletPlugin -}}
serviceAccountName: {{ include "nvdra.serviceAccountName" . | quote }}
{{- with $plugin.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .Values.global.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $plugin.podSecurityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
nodeSelector:
  {{- include "nvdra.nodeSelector" $plugin.nodeSelector | nindent 2 }}
{{- with $plugin.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $plugin.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
# A prepare under way is answered within the kubelet's 45 s, then the process stops by itself.
terminationGracePeriodSeconds: 60
{{- end -}}

{{/* "true" if a rolling update starts the new pod beside the old one. */}}
{{- define "nvdra.isSurging" -}}
{{- $strategy := .Values.kubeletPlugin.updateStrategy -}}
{{- $update := default dict $strategy.rollingUpdate -}}
{{- if and (eq $strategy.type "RollingUpdate") (not (include "nvdra.isSomeNodes" $update.maxUnavailable)) -}}
true
{{- end -}}
{{- end -}}

{{/* "true" if a number of nodes, or a percentage of them, is not 0. */}}
{{- define "nvdra.isSomeNodes" -}}
{{- if not (has (toString (default 0 .)) (list "0" "0%")) -}}true{{- end -}}
{{- end -}}

{{/*
How pods are replaced. The API server takes only one of maxSurge and maxUnavailable. Values for a release that had
no surge name the latter, and keep their meaning.
*/}}
{{- define "nvdra.updateStrategy" -}}
{{- $strategy := .Values.kubeletPlugin.updateStrategy -}}
type: {{ $strategy.type }}
{{- if eq $strategy.type "RollingUpdate" }}
{{- $update := default dict $strategy.rollingUpdate }}
rollingUpdate:
  maxSurge: {{ ternary $update.maxSurge 0 (eq (include "nvdra.isSurging" .) "true") }}
  maxUnavailable: {{ default 0 $update.maxUnavailable }}
{{- end }}
{{- end -}}

{{/*
Alive is about the process, ready about the node: without a driver the plugin stays up, not ready, and
says what is missing.
*/}}
{{- define "nvdra.probes" -}}
startupProbe:
  httpGet: {path: /healthz, port: http}
  periodSeconds: 1
  timeoutSeconds: 10
  failureThreshold: 600
livenessProbe:
  httpGet: {path: /healthz, port: http}
  periodSeconds: 30
  timeoutSeconds: 10
  failureThreshold: 3
readinessProbe:
  httpGet: {path: /readyz, port: http}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 3
{{- end -}}

{{- define "nvdra.mounts" -}}
# The kubelet dials the sockets by the paths that it sees itself.
- name: plugins-registry
  mountPath: {{ .Values.kubeletPlugin.kubeletRegistrarDirectoryPath | quote }}
- name: plugins
  mountPath: {{ .Values.kubeletPlugin.kubeletPluginsDirectoryPath | quote }}
  mountPropagation: Bidirectional
# To read which pods still use a claim that is gone: the kubelet's checkpoint, which is
# replaced by rename, and its pods' directories. Unmounts there must reach this copy.
- name: kubelet
  mountPath: {{ dir .Values.kubeletPlugin.kubeletPluginsDirectoryPath | quote }}
  readOnly: true
  mountPropagation: HostToContainer
- name: cdi
  mountPath: /var/run/cdi
# The only directory of the container itself that can be written: SIGUSR2 leaves the stacks there.
- name: tmp
  mountPath: /tmp
- name: driver-root
  mountPath: /driver-root
  mountPropagation: HostToContainer
# The node's own /dev: a container's copy has only the nodes that were there when it started, and
# nvidia-uvm often comes later.
- name: dev
  mountPath: /dev
  mountPropagation: HostToContainer
{{- range include "nvdra.movedRoots" . | fromJsonArray }}
- name: {{ .volume | quote }}
  mountPath: {{ .path | quote }}
  mountPropagation: HostToContainer
{{- end }}
{{- end -}}

{{- define "nvdra.volumes" -}}
- name: plugins-registry
  hostPath:
    path: {{ .Values.kubeletPlugin.kubeletRegistrarDirectoryPath | quote }}
    type: DirectoryOrCreate
- name: plugins
  hostPath:
    path: {{ .Values.kubeletPlugin.kubeletPluginsDirectoryPath | quote }}
    type: DirectoryOrCreate
- name: kubelet
  hostPath:
    path: {{ dir .Values.kubeletPlugin.kubeletPluginsDirectoryPath | quote }}
    type: Directory
- name: cdi
  hostPath:
    path: /var/run/cdi
    type: DirectoryOrCreate
- name: tmp
  emptyDir: {sizeLimit: 16Mi}
# Made where it is missing: a driver that is installed later is mounted below it.
- name: driver-root
  hostPath:
    path: {{ clean .Values.global.nvidiaDriverRoot | dir | quote }}
    type: DirectoryOrCreate
- name: dev
  hostPath:
    path: /dev
    type: Directory
{{- range include "nvdra.movedRoots" . | fromJsonArray }}
- name: {{ .volume | quote }}
  hostPath:
    path: {{ .path | quote }}
    type: Directory
{{- end }}
{{- end -}}

{{/* The rule that a plugin may write only its own driver's slices of its own node. */}}
{{- define "nvdra.slicesPolicy" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {{ .name | quote }}
  labels:
    {{- include "nvdra.labels" .root | nindent 4 }}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
      - apiGroups: [resource.k8s.io]
        apiVersions: [v1, v1beta2, v1beta1]
        operations: [CREATE, UPDATE, DELETE]
        resources: [resourceslices]
  matchConditions:
    - name: {{ .condition | quote }}
      expression: {{ include "nvdra.isTheAccount" .root }}
  variables:
    - name: userNodeName
      expression: {{ include "nvdra.userNodeName" . }}
    # What there is and what there will be: an update must not take another node's slice either.
    - name: slices
      expression: '[object, oldObject].filter(slice, slice != null)'
  validations:
    - expression: variables.userNodeName != ''
      message: no node association found for user, this user must run in a pod on a node and ServiceAccountTokenPodNodeInfo must be enabled
    - expression: variables.slices.all(slice, slice.spec.?nodeName.orValue('') == variables.userNodeName)
      messageExpression: >-
        "this user running on node '" + variables.userNodeName + "' may not modify cluster or node resourceslices"
    # Devices are known by the names of their pools: a newer generation of another node's pool would replace its devices
    # and taint them, by which Kubernetes evicts its pods.
    - expression: object == null || object.spec.pool.name == variables.userNodeName
      messageExpression: >-
        "this user running on node '" + variables.userNodeName + "' may only publish the pool of that name"
    - expression: variables.slices.all(slice, slice.spec.driver == '{{ .driver }}')
      message: this user may only modify resourceslices of the driver {{ .driver }}
{{- end -}}

{{/* As JSON: the values of variables that users may think of setting themselves. */}}
{{- define "nvdra.nodePlaces" -}}
{{- dict "V" "global.logVerbosity" "FEATURE_GATES" "global.featureGates" "NVIDIA_DRIVER_ROOT" "global.nvidiaDriverRoot" "CONSUMABLE_SHARES" "kubeletPlugin.consumableShares" "ADDITIONAL_NAMESPACES" "global.additionalNamespaces" | toJson -}}
{{- end -}}

{{/* What no values.schema.json can say of a node plugin: see _problems.tpl. */}}
{{- define "nvdra.nodeProblems" -}}
{{- $problems := include "nvdra.installationProblems" (dict "root" . "rights" "may write ResourceSlices") | fromJsonArray -}}
{{- $problems = include "nvdra.podSecurityProblems" . | fromJsonArray | concat $problems -}}

{{- if not (include "nvdra.resourceApiVersion" .) -}}
{{- $problems = append $problems "this cluster serves none of resource.k8s.io/v1, v1beta2 and v1beta1, so no pod can claim a device: enable the API group (Kubernetes 1.32 or later, feature gate DynamicResourceAllocation), or name the version in global.resourceApiVersion if it will be served later" -}}
{{- end -}}

{{- range include "nvdra.movedRoots" . | fromJsonArray -}}
{{- if lt (len (splitList "/" .path)) 3 -}}
{{- $problems = append $problems (printf "global.%sRoot=%s cannot be mounted into the plugin's container, where it would hide what the image brings: it must lie at least two levels below /, as /run/nvidia/%s does" (trimSuffix "-root" .volume) .path (trimSuffix "-root" .volume)) -}}
{{- end -}}
{{- end -}}

{{- if ne (clean .Values.global.devRoot | base) "dev" -}}
{{- $problems = append $problems (printf "global.devRoot=%s must be a directory named dev, as /run/nvidia/dev is: a device's path in a container is its path below the parent of that directory" .Values.global.devRoot) -}}
{{- end -}}

{{- $update := default dict .Values.kubeletPlugin.updateStrategy.rollingUpdate -}}
{{- if and (include "nvdra.isSurging" .) (not (include "nvdra.isSomeNodes" $update.maxSurge)) -}}
{{- $problems = append $problems "kubeletPlugin.updateStrategy.rollingUpdate: maxSurge and maxUnavailable are both 0, so that no plugin could ever be updated: set one of them, for instance maxSurge=10%" -}}
{{- end -}}

{{- $plugins := clean .Values.kubeletPlugin.kubeletPluginsDirectoryPath -}}
{{- if lt (len (splitList "/" $plugins)) 3 -}}
{{- $problems = append $problems (printf "kubeletPlugin.kubeletPluginsDirectoryPath=%s cannot be used: the directory above it, the kubelet's root, is mounted into the plugin's container and would hide what the image brings; it must lie at least two levels below /, as /var/lib/kubelet/plugins does" $plugins) -}}
{{- end -}}
{{- toJson $problems -}}
{{- end -}}
