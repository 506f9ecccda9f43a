{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{/*
What helm sees of the cluster, for refusals and notes: nothing with `helm template`. What is rendered never depends
on it, so that GitOps and helm agree.
*/}}

{{/* "true" if a label requirement of a node selector is met. Arguments: `labels`, and the `requirement`. */}}
{{- define "nvdra.meetsRequirement" -}}
{{- $value := get .labels .requirement.key -}}
{{- $isSet := hasKey .labels .requirement.key -}}
{{- $isIn := and $isSet (has $value (.requirement.values | default list)) -}}
{{- $bound := .requirement.values | default (list "0") | first | int64 -}}
{{- $isNumber := and $isSet (regexMatch "^-?[0-9]+$" $value) -}}
{{- $operator := .requirement.operator -}}
{{- if or
    (and (eq $operator "In") $isIn)
    (and (eq $operator "NotIn") (not $isIn))
    (and (eq $operator "Exists") $isSet)
    (and (eq $operator "DoesNotExist") (not $isSet))
    (and (eq $operator "Gt") $isNumber (gt (int64 $value) $bound))
    (and (eq $operator "Lt") $isNumber (lt (int64 $value) $bound))
-}}
true
{{- end -}}
{{- end -}}

{{/* The terms of a plugin's required node affinity, as a JSON list. Argument: the root context of its chart. */}}
{{- define "nvdra.nodeSelectorTerms" -}}
{{- $affinity := (.Values.kubeletPlugin.affinity | default dict).nodeAffinity | default dict -}}
{{- ($affinity.requiredDuringSchedulingIgnoredDuringExecution | default dict).nodeSelectorTerms | default list | toJson -}}
{{- end -}}

{{/*
"true" if a taint keeps a plugin's pods away. Taints of Kubernetes itself say how a node is at the moment. Arguments:
the `taint`, and the `tolerations`.
*/}}
{{- define "nvdra.keepsAway" -}}
{{- $taint := .taint -}}
{{- $isKept := and (has $taint.effect (list "NoSchedule" "NoExecute")) (not (regexMatch "^node([.]cloudprovider)?[.]kubernetes[.]io/" $taint.key)) -}}
{{- range .tolerations -}}
{{- $isOfEffect := has (.effect | default "") (list "" $taint.effect) -}}
{{- $isOfKey := has (.key | default "") (list "" $taint.key) -}}
{{- $isOfValue := or (ne (.operator | default "Equal") "Equal") (eq (.value | default "") ($taint.value | default "")) -}}
{{- if and $isOfEffect $isOfKey $isOfValue }}{{ $isKept = false }}{{ end -}}
{{- end -}}
{{- if $isKept }}true{{ end -}}
{{- end -}}

{{/* Nodes of a plugin with taints that it does not tolerate: a JSON list of `NODE (TAINT, ...)`. */}}
{{- define "nvdra.taintedNodes" -}}
{{- $found := list -}}
{{- range $node := (lookup "v1" "Node" "" "").items -}}
{{- $taints := list -}}
{{- range ($node.spec | default dict).taints -}}
{{- if include "nvdra.keepsAway" (dict "taint" . "tolerations" $.Values.kubeletPlugin.tolerations) -}}
{{- $taints = append $taints (printf "%s%s:%s" .key (ternary (printf "=%s" .value) "" (not (empty .value))) .effect) -}}
{{- end -}}
{{- end -}}
{{- if and $taints (include "nvdra.isNodeOfPlugin" (dict "root" $ "node" $node)) -}}
{{- $found = append $found (printf "%s (%s)" $node.metadata.name (join ", " $taints)) -}}
{{- end -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{/* "true" if a node is one for a plugin's pods, by its labels. Arguments: `root`, of the plugin's chart, and `node`. */}}
{{- define "nvdra.isNodeOfPlugin" -}}
{{- $labels := .node.metadata.labels | default dict -}}
{{- $plugin := .root.Values.kubeletPlugin -}}
{{- $is := true -}}
{{- range $key, $value := include "nvdra.nodeSelector" $plugin.nodeSelector | fromYaml -}}
{{- if ne (get $labels $key) $value }}{{ $is = false }}{{ end -}}
{{- end -}}
{{- with include "nvdra.nodeSelectorTerms" .root | fromJsonArray -}}
{{- $any := false -}}
{{- range $term := . -}}
{{- $all := or $term.matchExpressions $term.matchFields | empty | not -}}
{{- range $requirement := $term.matchExpressions -}}
{{- if not (include "nvdra.meetsRequirement" (dict "labels" $labels "requirement" $requirement)) }}{{ $all = false }}{{ end -}}
{{- end -}}
{{- $fields := dict "metadata.name" $.node.metadata.name -}}
{{- range $requirement := $term.matchFields -}}
{{- if not (include "nvdra.meetsRequirement" (dict "labels" $fields "requirement" $requirement)) }}{{ $all = false }}{{ end -}}
{{- end -}}
{{- if $all }}{{ $any = true }}{{ end -}}
{{- end -}}
{{- if not $any }}{{ $is = false }}{{ end -}}
{{- end -}}
{{- if $is }}true{{ end -}}
{{- end -}}

{{/* Nodes of a plugin on which a device plugin offers GPUs: a JSON list of `NODE (RESOURCE, ...)`. */}}
{{- define "nvdra.nodesWithDevicePlugin" -}}
{{- $found := list -}}
{{- range $node := (lookup "v1" "Node" "" "").items -}}
{{- $offered := list -}}
{{- range $resource, $count := $node.status.allocatable | default dict -}}
{{- if and (regexMatch "^nvidia[.]com/(gpu|pgpu|mig-.+)$" $resource) (ne (toString $count) "0") -}}
{{- $offered = append $offered $resource -}}
{{- end -}}
{{- end -}}
{{- if and $offered (include "nvdra.isNodeOfPlugin" (dict "root" $ "node" $node)) -}}
{{- $found = append $found (printf "%s (%s)" $node.metadata.name ($offered | sortAlpha | join ", ")) -}}
{{- end -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{/* Some of a long list, and how many more there are. */}}
{{- define "nvdra.some" -}}
{{- $more := sub (len .) 3 -}}
{{- join ", " (gt $more 0 | ternary (slice . 0 (min 3 (len .))) .) -}}
{{- if gt $more 0 }} and {{ $more }} more{{ end -}}
{{- end -}}

{{/* Why the pods of a plugin are sure to be refused in its namespace; empty if they are not. */}}
{{- define "nvdra.podSecurityText" -}}
{{- $namespace := include "nvdra.namespace" . -}}
{{- $labels := ((lookup "v1" "Namespace" "" $namespace).metadata | default dict).labels | default dict -}}
{{- $level := get $labels "pod-security.kubernetes.io/enforce" -}}
{{- if has $level (list "baseline" "restricted") -}}
the namespace {{ $namespace }} enforces the Pod Security level {{ $level }}, so that pods of plugins are refused: kubectl label --overwrite namespace {{ $namespace }} pod-security.kubernetes.io/enforce=privileged
{{- end -}}
{{- end -}}

{{/* An installation is refused that is sure to fail. A release that runs goes on: see the notes. */}}
{{- define "nvdra.podSecurityProblems" -}}
{{- $problems := list -}}
{{- if not .Release.IsUpgrade -}}
{{- with include "nvdra.podSecurityText" . }}{{ $problems = append $problems . }}{{ end -}}
{{- end -}}
{{- toJson $problems -}}
{{- end -}}

{{/* The same beside a device plugin. Arguments: `root`, of the GPU plugin's chart, and the value `override`. */}}
{{- define "nvdra.devicePluginProblems" -}}
{{- $problems := list -}}
{{- if not (or .root.Release.IsUpgrade .override) -}}
{{- with include "nvdra.nodesWithDevicePlugin" .root | fromJsonArray -}}
{{- $problems = append $problems (printf "this cluster has a device plugin that offers GPUs on %s, where the GPU plugin would run: two pods could be given the same GPU. Take the device plugin off these nodes first (docs/device-plugin.md), leave them out with kubeletPlugin.affinity or kubeletPlugin.nodeSelector, or set gpuResourcesEnabledOverride=true if you know that claims and extended resources do not meet there" (include "nvdra.some" .)) -}}
{{- end -}}
{{- end -}}
{{- toJson $problems -}}
{{- end -}}

{{/*
DeviceClasses that another release or project has installed: helm would refuse them without saying what to do. Those of
this chart's own manifests (kubectl apply) are helm's to refuse, which takes them over with --take-ownership.
Arguments: `root`, of the chart, and the `names` of its classes.
*/}}
{{- define "nvdra.deviceClassProblems" -}}
{{- $problems := list -}}
{{- $release := .root.Release -}}
{{- with include "nvdra.resourceApiVersion" .root -}}
{{- $version := . -}}
{{- range $name := $.names -}}
{{- with lookup $version "DeviceClass" "" $name -}}
{{- $annotations := .metadata.annotations | default dict -}}
{{- $owner := get $annotations "meta.helm.sh/release-name" -}}
{{- $home := get $annotations "meta.helm.sh/release-namespace" -}}
{{- $labels := .metadata.labels | default dict -}}
{{- $isOurs := and (eq (get $labels "app.kubernetes.io/part-of") "nvdra") (eq (get $labels "app.kubernetes.io/instance") $release.Name) -}}
{{- $isAdoptable := and $isOurs (eq $owner "") -}}
{{- if and (not $isAdoptable) (or (ne $owner $release.Name) (ne $home $release.Namespace)) -}}
{{- $whose := ternary (printf "belongs to the helm release %s in the namespace %s" $owner $home) "was made by another tool than helm" (ne $owner "") -}}
{{- $problems = append $problems (printf "this cluster has the DeviceClass %s, which %s: uninstall that driver first; if it is gone, kubectl delete deviceclass %s; or go on with that class: set deviceClasses.create=false" $name $whose $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $problems -}}
{{- end -}}

{{/* "true" unless the classes are brought by another chart. A release that reuses values of before has no such value. */}}
{{- define "nvdra.createsDeviceClasses" -}}
{{- if ne ((.Values.deviceClasses | default dict).create | toString) "false" }}true{{ end -}}
{{- end -}}
