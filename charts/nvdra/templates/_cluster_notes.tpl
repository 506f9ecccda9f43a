{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{/*
What this cluster lacks, or has too much of, as far as helm can look: it cannot with `helm template`, and
says nothing then. Each line is a sentence.
*/}}
{{- define "nvdra.clusterNotes" -}}
{{- $nodes := (lookup "v1" "Node" "" "").items -}}
{{- if $nodes -}}
{{- $plugins := list (index .Subcharts "nvdra-gpu-plugin") (index .Subcharts "nvdra-cd-plugin") | compact -}}
{{- $found := list -}}
{{- $former := list -}}
{{- range $plugin := $plugins -}}
{{- range $node := $nodes -}}
{{- if include "nvdra.isNodeOfPlugin" (dict "root" $plugin "node" $node) -}}
{{- $found = append $found $node.metadata.name -}}
{{- $runtime := dig "status" "nodeInfo" "containerRuntimeVersion" "" $node -}}
{{- if hasPrefix "containerd://1." $runtime }}{{ $former = append $former (printf "%s (%s)" $node.metadata.name $runtime) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- with include "nvdra.podSecurityText" $plugin }}
- {{ . | upper | substr 0 1 }}{{ substr 1 (len .) . }}
{{- end }}
{{- end -}}
{{- range $plugin := $plugins -}}
{{- with include "nvdra.taintedNodes" $plugin | fromJsonArray }}
- Nodes have taints that {{ $plugin.Chart.Name }} does not tolerate, so that it does not run there: {{ include "nvdra.some" . }}. If it should, add tolerations to {{ $plugin.Chart.Name }}.kubeletPlugin.tolerations, and to pods that claim devices; see docs/install.md
{{- end }}
{{- end -}}
{{- if not (or $found (not $plugins)) }}
- No node is one for the plugins, by its labels, so none runs: kubectl label node NODE nvidia.com/gpu.present=true
{{- end }}
{{- with uniq $former }}
- containerd 1 injects no CDI device unless its configuration says enable_cdi = true, and containers start without their GPUs; see docs/requirements.md: {{ include "nvdra.some" . }}
{{- end }}
{{- with index .Subcharts "nvdra-gpu-plugin" }}
{{- with include "nvdra.nodesWithDevicePlugin" . | fromJsonArray }}
- A device plugin offers GPUs on {{ include "nvdra.some" . }}, where the GPU plugin runs, too, and two pods can be given the same GPU there; see docs/device-plugin.md, and: kubectl get nodes -o 'custom-columns=NODE:.metadata.name,GPUS:.status.allocatable.nvidia\.com/gpu'
{{- end }}
{{- end }}
{{- range $gate := list "FabricManagerPartitioning" "LoggingAlphaOptions" }}
{{- if get ($.Values.global.featureGates | default dict) $gate }}
- The feature gate {{ $gate }} has no effect in this version
{{- end }}
{{- end }}
{{- if and .Values.resources.gpus.enabled (ne (include "nvdra.resourceApiVersion" (index .Subcharts "nvdra-gpu-plugin")) "resource.k8s.io/v1") }}
- This cluster serves no resource.k8s.io/v1, so nvidia.com/gpu in limits is not served, and claims are written in an older version: Kubernetes 1.34 or later has it
{{- end }}
{{- end -}}
{{- end -}}
