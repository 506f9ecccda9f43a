{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{/* All that is wrong with the values, as a JSON list. */}}
{{- define "nvdra-webhook.problems" -}}
{{- $problems := include "nvdra.globalProblems" (dict "root" . "known" (list "featureGates" "logVerbosity" "loggingFormat" "imageRegistry" "imagePullPolicy" "imagePullSecrets" "allowDefaultNamespace" "apiServerPorts" "testPod" "podMonitors" "otlp")) | fromJsonArray -}}
{{- $problems = include "nvdra.gateProblems" . | fromJsonArray | concat $problems -}}
{{- $problems = include "nvdra.imageProblems" . | fromJsonArray | concat $problems -}}
{{- $mode := dig "mode" "" (.Values.tls | default dict) -}}
{{- $certManager := dig "certManager" dict (.Values.tls | default dict) | default dict -}}
{{- $secret := dig "secret" dict (.Values.tls | default dict) | default dict -}}
{{- $issuerType := $certManager.issuerType | default "" -}}
{{- if not (has $mode (list "cert-manager" "secret" "self-managed")) -}}
{{- $problems = append $problems (printf "tls.mode=%s: set it to cert-manager, secret or self-managed" ($mode | default "(none)")) -}}
{{- end -}}
{{- if eq $mode "cert-manager" -}}
{{- if not (has $issuerType (list "selfsigned" "clusterissuer" "issuer")) -}}
{{- $problems = append $problems (printf "tls.certManager.issuerType=%s: set it to selfsigned, clusterissuer or issuer" ($issuerType | default "(none)")) -}}
{{- else if and (ne $issuerType "selfsigned") (not $certManager.issuerName) -}}
{{- $problems = append $problems (printf "tls.certManager.issuerName is empty: issuerType=%s needs the name of one" $issuerType) -}}
{{- end -}}
{{- end -}}
{{- if eq $mode "secret" -}}
{{- if not $secret.name -}}
{{- $problems = append $problems "tls.secret.name is empty: name a Secret with tls.crt and tls.key" -}}
{{- end -}}
{{- if not $secret.caBundle -}}
{{- $problems = append $problems "tls.secret.caBundle is empty: API servers trust the webhook by the CA's certificate, in base64" -}}
{{- end -}}
{{- end -}}
{{- $asks := or (eq $mode "self-managed") (include "nvdra-webhook.looksAtCluster" .) -}}
{{- $rights := "asks the API server for classes and slices, and writes its certificate's Secret (clusterLookupInterval=0s and another tls.mode than self-managed need no account)" -}}
{{- range include "nvdra.installationProblems" (dict "root" . "rights" $rights) | fromJsonArray -}}
{{- if or $asks (not (hasPrefix "serviceAccount" .)) -}}
{{- $problems = append $problems . -}}
{{- end -}}
{{- end -}}
{{- $service := include "nvdra.fullname" . -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $service) -}}
{{- $problems = append $problems (printf "fullnameOverride: the Service would be named %s, and the name of a Service begins with a letter and has no dots: take another name for the release, or set it" $service) -}}
{{- end -}}
{{- toJson $problems -}}
{{- end -}}
