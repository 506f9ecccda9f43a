{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{/*
What admission policies have in common: who asks, from which node and pod, and how a policy is put in
force. What a token says of pod and node is signed by the API server (ServiceAccountTokenPodNodeInfo).
*/}}

{{/* The request comes from the service account of the chart's own pods. */}}
{{- define "nvdra.isTheAccount" -}}
request.userInfo.username == 'system:serviceaccount:{{ include "nvdra.namespace" . }}:{{ include "nvdra.serviceAccountName" . }}'
{{- end -}}

{{/* The node of the requesting pod, from its token. */}}
{{- define "nvdra.userNodeName" -}}
request.userInfo.?extra[?'authentication.kubernetes.io/node-name'][0].orValue('')
{{- end -}}

{{/* The requesting pod's `name` or `uid`, from its token. */}}
{{- define "nvdra.userPod" -}}
request.userInfo.?extra[?'authentication.kubernetes.io/pod-{{ . }}'][0].orValue('')
{{- end -}}

{{/* Only labels of the object are changed. Which ones may be changed is checked separately. */}}
{{- define "nvdra.nothingButLabels" -}}
{{ include "nvdra.nothingButLabelsAndAnnotations" . }}
&& {{ include "nvdra.onlyKeys" (dict "root" . "after" "object.metadata.?annotations.orValue({})" "before" "oldObject.metadata.?annotations.orValue({})") }}
{{- end -}}

{{/*
Of labels or annotations no other keys are there, or are changed, than those that the expression `ours` of the variable
key admits, and those that other admission of the cluster adds (global.admittedByOthers).
Arguments: the `root` context; `after` and `before`, expressions; `ours`, none if empty.
*/}}
{{- define "nvdra.onlyKeys" -}}
{{- $free := printf "%s%s.exists(known, key == known || (known.endsWith('/') && key.startsWith(known)))" (empty .ours | ternary "" (printf "%s || " .ours)) (.root.Values.global.admittedByOthers | default list | toJson) -}}
{{ .after }}.all(key, {{ $free }} || (key in {{ .before }} && {{ .before }}[key] == {{ .after }}[key]))
&& {{ .before }}.all(key, {{ $free }} || key in {{ .after }})
{{- end -}}

{{/* What a refusal says where other admission of the cluster may have added something. */}}
{{- define "nvdra.sayAdmitted" -}}
; what another admission of the cluster adds is to be named in global.admittedByOthers
{{- end -}}

{{/* The security context, an expression, has this and at most a seccomp profile, which a policy of the cluster may add. */}}
{{- define "nvdra.onlyContext" -}}
{{ .context }}.all(field, field == 'seccompProfile' ? {{ .context }}.seccompProfile == {'type': 'RuntimeDefault'} : {{ .context }}[field] == {{ .given }}[?field].orValue(null))
&& {{ .given }}.all(field, field in {{ .context }})
{{- end -}}

{{- define "nvdra.nothingButLabelsAndAnnotations" -}}
object.spec == oldObject.spec
&& object.metadata.?finalizers.orValue([]) == oldObject.metadata.?finalizers.orValue([])
&& object.metadata.?ownerReferences.orValue([]) == oldObject.metadata.?ownerReferences.orValue([])
{{- end -}}

{{/*
No other fields of an object than these are there, or are changed: also none that a later Kubernetes adds.
Arguments: `after` and `before`, expressions of the type dyn, of which the latter is {} on CREATE; `fields`.
*/}}
{{- define "nvdra.onlyFields" -}}
{{- $fields := toJson .fields -}}
{{ .after }}.all(field, field in {{ $fields }} || {{ .after }}[field] == {{ .before }}[?field].orValue(null))
&& {{ .before }}.all(field, field in {{ $fields }} || field in {{ .after }})
{{- end -}}

{{/*
The container's image is of this repository, with any tag: while a rollout is under way there are two releases.
Arguments: `image`, with its tag, and `container`, an expression.
*/}}
{{- define "nvdra.isOfTheRepository" -}}
{{- $repository := regexReplaceAll "(@[^@]*|:[^:/]*)$" .image "" -}}
{{ .container }}.image.startsWith('{{ $repository }}')
&& {{ .container }}.image.substring({{ len $repository }}).matches('^(:[0-9A-Za-z_][0-9A-Za-z_.-]*)?(@sha256:[0-9a-f]+)?$')
{{- end -}}

{{/* As a list of CEL: the image pull secrets of the release, as pods name them. */}}
{{- define "nvdra.pullSecrets" -}}
{{- $secrets := list -}}
{{- range .Values.global.imagePullSecrets }}{{ $secrets = append $secrets (dict "name" .name) }}{{ end -}}
{{- toJson $secrets -}}
{{- end -}}

{{/* Arguments: the root context and the policy's `name`. */}}
{{- define "nvdra.policyBinding" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ .name | quote }}
  labels:
    {{- include "nvdra.labels" .root | nindent 4 }}
spec:
  policyName: {{ .name | quote }}
  validationActions: [Deny]
{{- end -}}
