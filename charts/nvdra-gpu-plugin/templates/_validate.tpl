{{/*
What a values.schema.json cannot say: rules about several values, about the cluster, and about keys that
only a chart at the top may refuse. Renders nothing.
*/}}

{{- define "nvdra-gpu-plugin.validate" -}}

{{- if not (include "nvdra-gpu-plugin.resourceApiVersion" .) -}}
{{- fail "this cluster serves none of resource.k8s.io/v1, v1beta2 and v1beta1, so no pod can claim a device: enable the API group (Kubernetes 1.32 or later, feature gate DynamicResourceAllocation), or name the version in global.resourceApiVersion if it will be served later" -}}
{{- end -}}

{{- if and (not .Values.serviceAccount.create) (not .Values.serviceAccount.name) -}}
{{- fail "serviceAccount.create=false needs serviceAccount.name: the account that the plugin runs as may write ResourceSlices, so it is never the namespace's default" -}}
{{- end -}}

{{- range include "nvdra-gpu-plugin.movedRoots" . | fromJsonArray -}}
{{- if lt (len (splitList "/" .path)) 3 -}}
{{- fail (printf "global.%sRoot=%s cannot be mounted into the plugin's container, where it would hide what the image brings: it must lie at least two levels below /, as /run/nvidia/%s does" (trimSuffix "-root" .volume) .path (trimSuffix "-root" .volume)) -}}
{{- end -}}
{{- end -}}

{{- if ne (clean .Values.global.devRoot | base) "dev" -}}
{{- fail (printf "global.devRoot=%s must be a directory named dev, as /run/nvidia/dev is: a device's path in a container is its path below the parent of that directory" .Values.global.devRoot) -}}
{{- end -}}

{{- $plugins := clean .Values.kubeletPlugin.kubeletPluginsDirectoryPath -}}
{{- if lt (len (splitList "/" $plugins)) 3 -}}
{{- fail (printf "kubeletPlugin.kubeletPluginsDirectoryPath=%s cannot be used: the directory above it, the kubelet's root, is mounted into the plugin's container and would hide what the image brings; it must lie at least two levels below /, as /var/lib/kubelet/plugins does" $plugins) -}}
{{- end -}}

{{- if .Chart.IsRoot -}}
{{- include "nvdra-gpu-plugin.validateGlobal" . -}}
{{- end -}}
{{- end -}}

{{/*
A misspelt setting of ours under `global` fails where nvdra itself is installed. Inside somebody else's
chart, `global` holds that chart's settings too.
*/}}
{{- define "nvdra-gpu-plugin.validateGlobal" -}}
{{- $known := list "nvidiaDriverRoot" "nvidiaCDIHookPath" "procRoot" "sysRoot" "devRoot" "featureGates" "logVerbosity" "imageRegistry" "imagePullPolicy" "imagePullSecrets" "resourceApiVersion" "otlp" -}}
{{- range $key, $_ := .Values.global -}}
{{- if not (has $key $known) -}}
{{- fail (printf "global.%s is not a setting of nvdra; those are %s" $key (join ", " $known)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
