{{/*
What admission policies have in common: who asks, from which node and pod, and how a policy is put in
force. What a token says of pod and node is signed by the API server (ServiceAccountTokenPodNodeInfo).
*/}}

{{/* Who asks is the account of the chart's own pods. */}}
{{- define "nvdra.isTheAccount" -}}
request.userInfo.username == 'system:serviceaccount:{{ include "nvdra.namespace" . }}:{{ include "nvdra.serviceAccountName" . }}'
{{- end -}}

{{/* The node that the pod of whoever asks runs on, as its token says. */}}
{{- define "nvdra.userNodeName" -}}
request.userInfo.?extra[?'authentication.kubernetes.io/node-name'][0].orValue('')
{{- end -}}

{{/* The pod that whoever asks runs in, likewise: its `name` or `uid`. */}}
{{- define "nvdra.userPod" -}}
request.userInfo.?extra[?'authentication.kubernetes.io/pod-{{ . }}'][0].orValue('')
{{- end -}}

{{/* Of an object nothing is changed but labels; who asks must be allowed those beside. */}}
{{- define "nvdra.nothingButLabels" -}}
object.spec == oldObject.spec
&& object.metadata.?annotations.orValue({}) == oldObject.metadata.?annotations.orValue({})
&& object.metadata.?finalizers.orValue([]) == oldObject.metadata.?finalizers.orValue([])
&& object.metadata.?ownerReferences.orValue([]) == oldObject.metadata.?ownerReferences.orValue([])
{{- end -}}

{{/* Takes the root context and the policy's `name`. */}}
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
