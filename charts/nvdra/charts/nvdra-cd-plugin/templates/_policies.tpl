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
&& object.metadata.?annotations.orValue({}) == oldObject.metadata.?annotations.orValue({})
{{- end -}}

{{- define "nvdra.nothingButLabelsAndAnnotations" -}}
object.spec == oldObject.spec
&& object.metadata.?finalizers.orValue([]) == oldObject.metadata.?finalizers.orValue([])
&& object.metadata.?ownerReferences.orValue([]) == oldObject.metadata.?ownerReferences.orValue([])
{{- end -}}

{{/* Arguments: the root context and the policy's `name`. */}}
{{- define "nvdra.policyBinding" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ .name }}
  labels:
    {{- include "nvdra.labels" .root | nindent 4 }}
spec:
  policyName: {{ .name }}
  validationActions: [Deny]
{{- end -}}
