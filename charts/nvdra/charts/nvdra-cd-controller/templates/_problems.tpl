{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{/*
What a values.schema.json cannot say: rules about several values, and about the cluster. Each definition
that ends in Problems is a JSON list of sentences, so that a values file is told all of them at once.
*/}}

{{/* "true" where the umbrella chart nvdra contains this chart: it tells the problems of all its parts. */}}
{{- define "nvdra.isPart" -}}
{{- if regexMatch "(^|/)nvdra/charts/[^/]+/templates$" .Template.BasePath }}true{{ end -}}
{{- end -}}

{{/* Fails with a list of problems, unless it is empty. */}}
{{- define "nvdra.refuse" -}}
{{- with . -}}
{{- fail (printf "these values cannot be installed:\n- %s\n" (uniq . | join "\n- ")) -}}
{{- end -}}
{{- end -}}

{{- define "nvdra.knownGates" -}}
{{- list "AllAlpha" "AllBeta" "ComputeDomainCliques" "ConsumableShares" "ContextualLogging" "CrashOnNVLinkFabricErrors" "DRAListTypeAttributes" "DeviceMetadata" "DynamicMIG" "FabricManagerPartitioning" "HostManagedIMEXDaemon" "IMEXDaemonsWithDNSNames" "LoggingAlphaOptions" "LoggingBetaOptions" "MPSSupport" "NVMLDeviceHealthCheck" "PassthroughSupport" "TimeSlicingSettings" | toJson -}}
{{- end -}}

{{/* The known gate that has most groups of three letters in common with a name; empty if that is less than half. */}}
{{- define "nvdra.nearestGate" -}}
{{- $given := lower . -}}
{{- $groups := max 0 (sub (len $given) 2) | int -}}
{{- $nearest := "" -}}
{{- $most := 0 -}}
{{- range $gate := include "nvdra.knownGates" . | fromJsonArray -}}
{{- $common := 0 -}}
{{- range $at := until $groups -}}
{{- if contains (substr $at (add $at 3 | int) $given) (lower $gate) -}}
{{- $common = add1 $common -}}
{{- end -}}
{{- end -}}
{{- if and (gt ($common | int) ($most | int)) (ge (mul 2 $common | int) $groups) -}}
{{- $most = $common -}}
{{- $nearest = $gate -}}
{{- end -}}
{{- end -}}
{{- $nearest -}}
{{- end -}}

{{/* "true" if a beta gate, which is on by default, is on. Arguments: the gates of the values, and its name. */}}
{{- define "nvdra.isBetaOn" -}}
{{- $default := ternary (get .gates "AllBeta") true (hasKey .gates "AllBeta") -}}
{{- if ternary (get .gates .name) $default (hasKey .gates .name) }}true{{ end -}}
{{- end -}}

{{- define "nvdra.gateProblems" -}}
{{- $gates := .Values.global.featureGates | default dict -}}
{{- $known := include "nvdra.knownGates" . | fromJsonArray -}}
{{- $problems := list -}}
{{- range $name, $_ := $gates -}}
{{- if not (has $name $known) -}}
{{- $nearest := include "nvdra.nearestGate" $name -}}
{{- $advice := ternary (printf "; did you mean %s?" $nearest) "." (ne $nearest "") -}}
{{- $problems = append $problems (printf "global.featureGates.%s is not a feature gate%s The gates are %s" $name $advice (join ", " $known)) -}}
{{- end -}}
{{- end -}}
{{- if and (include "nvdra.isBetaOn" (dict "gates" $gates "name" "ComputeDomainCliques")) (not (include "nvdra.isBetaOn" (dict "gates" $gates "name" "IMEXDaemonsWithDNSNames"))) -}}
{{- $problems = append $problems "global.featureGates: ComputeDomainCliques, which is on by default, needs IMEXDaemonsWithDNSNames: set both to false, or neither" -}}
{{- end -}}
{{- toJson $problems -}}
{{- end -}}

{{/*
A misspelt setting of ours under `global` fails where nvdra itself is installed; inside somebody else's
chart, `global` holds that chart's settings too. Takes the root context and the names that are ours.
*/}}
{{- define "nvdra.globalProblems" -}}
{{- $problems := list -}}
{{- if .root.Chart.IsRoot -}}
{{- range $key, $_ := .root.Values.global -}}
{{- if not (has $key $.known) -}}
{{- $problems = append $problems (printf "global.%s is not a setting of nvdra; those are %s" $key (join ", " $.known)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $problems -}}
{{- end -}}

{{/*
`enabled` is for the condition of a parent chart; helm gives it to the chart as well. In a release of the chart itself,
and in the values of a part of the chart nvdra, it would look like a switch. Takes the values of the chart.
*/}}
{{- define "nvdra.conditionProblems" -}}
{{- $problems := list -}}
{{- if hasKey . "enabled" -}}
{{- $problems = append $problems "enabled: read by a parent chart's condition only; what the chart nvdra installs is said by resources.gpus.enabled and resources.computeDomains.enabled" -}}
{{- end -}}
{{- toJson $problems -}}
{{- end -}}

{{/* Of any component: its account, and the namespace. Arguments: the root context, and what the account may do. */}}
{{- define "nvdra.installationProblems" -}}
{{- $problems := list -}}
{{- if and (not .root.Values.serviceAccount.create) (not .root.Values.serviceAccount.name) -}}
{{- $problems = append $problems (printf "serviceAccount.create=false needs serviceAccount.name: the account that it runs as %s, so it is never the namespace's default" .rights) -}}
{{- end -}}
{{- if and (eq .root.Release.Namespace "default") (not .root.Values.namespaceOverride) (not .root.Values.global.allowDefaultNamespace) -}}
{{- $problems = append $problems "the namespace is default, where anybody's pods may be, so that many can use the driver's service accounts: install with --namespace nvdra-system --create-namespace, or set global.allowDefaultNamespace=true" -}}
{{- end -}}
{{- toJson $problems -}}
{{- end -}}

{{/*
Variables that the chart sets itself would be in the pod twice. Arguments: `setting`, the path of the
user's list; `env`, that list; `own`, the chart's variables as YAML; `places`, the value of each variable
that has one.
*/}}
{{- define "nvdra.environmentProblems" -}}
{{- $own := list -}}
{{- range fromYamlArray .own }}{{ $own = append $own .name }}{{ end -}}
{{- $problems := list -}}
{{- range .env -}}
{{- $place := get $.places .name -}}
{{- if $place -}}
{{- $problems = append $problems (printf "%s: %s is a setting of this chart: set %s instead" $.setting .name $place) -}}
{{- else if has .name $own -}}
{{- $problems = append $problems (printf "%s: %s is set by this chart; leave it out" $.setting .name) -}}
{{- end -}}
{{- end -}}
{{- toJson $problems -}}
{{- end -}}

{{/* Arguments: `setting`, its `address`, and the container's `env`, which may move the debug endpoint from port 6060. */}}
{{- define "nvdra.portProblems" -}}
{{- $port := splitList ":" .address | last | int -}}
{{- $problems := list -}}
{{- if gt $port 65535 -}}
{{- $problems = append $problems (printf "%s=%s: ports end at 65535" .setting .address) -}}
{{- end -}}
{{- $names := list -}}
{{- range .env }}{{ $names = append $names .name }}{{ end -}}
{{- if and (eq $port 6060) (not (has "DEBUG_ENDPOINT" $names)) -}}
{{- $problems = append $problems (printf "%s=%s: the debug endpoint has port 6060 of the pod; take another one" .setting .address) -}}
{{- end -}}
{{- toJson $problems -}}
{{- end -}}

{{/* As JSON: the repositories of a component that are in docker.io/nvdra, a name that this project does not own. */}}
{{- define "nvdra.unownedImages" -}}
{{- $unowned := list -}}
{{- if ne .Values.global.imagePullPolicy "Never" -}}
{{- range $image := list .Values.image (.Values.daemon | default dict).image | compact -}}
{{- $repository := include "nvdra.repository" (dict "root" $ "image" $image) -}}
{{- if regexMatch "^((index[.]|registry-1[.])?docker[.]io/)?nvdra/" $repository -}}
{{- $unowned = append $unowned $repository -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $unowned -}}
{{- end -}}

{{/* An installation is refused. A release that has such images already goes on: see the note. */}}
{{- define "nvdra.imageProblems" -}}
{{- $problems := list -}}
{{- if and (not .Release.IsUpgrade) (include "nvdra.unownedImages" . | fromJsonArray) -}}
{{- $problems = append $problems "global.imageRegistry: the images would come from docker.io/nvdra, a name that this project does not own, and run as root on the nodes: set it to the registry that you pushed the images to, or set the repository of each image, or global.imagePullPolicy=Never if the nodes have the images" -}}
{{- end -}}
{{- toJson $problems -}}
{{- end -}}

{{/* Argument: a list of images; empty without any. */}}
{{- define "nvdra.imageNote" -}}
{{- with . -}}
- The images {{ join ", " . }} come from docker.io/nvdra, a name that this project does not own, and run as root on the nodes. Push them to a registry of your own, and set global.imageRegistry
{{- end -}}
{{- end -}}

{{/* The note of a component that is installed alone. */}}
{{- define "nvdra.ownImageNote" -}}
{{- with include "nvdra.imageNote" (include "nvdra.unownedImages" . | fromJsonArray) }}

LOOK AT THIS:

{{ . }}
{{- end }}
{{- end -}}
