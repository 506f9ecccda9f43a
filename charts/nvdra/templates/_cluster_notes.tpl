{{/*
What this cluster lacks, or has too much of, as far as helm can look: it cannot with `helm template`, and
says nothing then. Each line is a sentence.
*/}}
{{- define "nvdra.clusterNotes" -}}
{{- $nodes := (lookup "v1" "Node" "" "").items -}}
{{- if $nodes -}}
{{- $labels := list "nvidia.com/gpu.present=true" "feature.node.kubernetes.io/pci-10de.present=true" "feature.node.kubernetes.io/pci-0302_10de.present=true" "feature.node.kubernetes.io/pci-0300_10de.present=true" "feature.node.kubernetes.io/cpu-model.vendor_id=NVIDIA" -}}
{{- $found := 0 -}}
{{- $offered := list -}}
{{- range $nodes -}}
{{- $own := .metadata.labels | default dict -}}
{{- $is := false -}}
{{- range $labels -}}
{{- $pair := splitList "=" . -}}
{{- if eq (get $own (first $pair)) (last $pair) }}{{ $is = true }}{{ end -}}
{{- end -}}
{{- if $is }}{{ $found = add1 $found }}{{ end -}}
{{- range $resource, $count := .status.capacity | default dict -}}
{{- if and (regexMatch "^nvidia[.]com/(gpu|pgpu|mig-.+)$" $resource) (ne (toString $count) "0") -}}
{{- $offered = append $offered $resource -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if not $found }}
- No node has a label by which the plugins find nodes with GPUs, so none runs (unless you have set their affinity): kubectl label node NODE nvidia.com/gpu.present=true
{{- end }}
{{- with $offered }}
- A device plugin offers {{ . | uniq | sortAlpha | join ", " }} on some nodes, and two pods can be given the same GPU there; see docs/device-plugin.md, and: kubectl get nodes -o 'custom-columns=NODE:.metadata.name,GPUS:.status.capacity.nvidia\.com/gpu'
{{- end }}
{{- range $part := list "nvdra-gpu-plugin" "nvdra-cd-plugin" }}
{{- with get $.Subcharts $part }}
{{- $namespace := include "nvdra.namespace" . }}
{{- $enforced := dig "metadata" "labels" "pod-security.kubernetes.io/enforce" "" (lookup "v1" "Namespace" "" $namespace) }}
{{- if has $enforced (list "baseline" "restricted") }}
- The namespace {{ $namespace }} enforces the Pod Security level {{ $enforced }}, so pods of {{ $part }} are refused: kubectl label --overwrite namespace {{ $namespace }} pod-security.kubernetes.io/enforce=privileged
{{- end }}
{{- end }}
{{- end }}
{{- range $gate := list "FabricManagerPartitioning" "LoggingAlphaOptions" "PassthroughSupport" }}
{{- if get ($.Values.global.featureGates | default dict) $gate }}
- The feature gate {{ $gate }} has no effect in this version
{{- end }}
{{- end }}
{{- if and .Values.resources.gpus.enabled (ne (include "nvdra.resourceApiVersion" (index .Subcharts "nvdra-gpu-plugin")) "resource.k8s.io/v1") }}
- This cluster serves no resource.k8s.io/v1, so nvidia.com/gpu in limits is not served, and claims are written in an older version: Kubernetes 1.34 or later has it
{{- end }}
{{- end -}}
{{- end -}}
