#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# `make try COMPONENT=gpu-plugin`: has this tree's component run in a lab, which it starts if none is up.
set -euo pipefail
component=${1:-}
if ! [[ -d packages/nvdra-$component/ && $component =~ ^(gpu-plugin|cd-plugin|cd-controller|imex-daemon|webhook)$ ]]; then
  echo "error: make try COMPONENT=gpu-plugin (or cd-plugin, cd-controller, imex-daemon, webhook)" >&2
  exit 2
fi
chart=(nvdra charts/nvdra --namespace nvdra-system --create-namespace --wait --values e2e/cluster/chart-values.yaml)
[[ $component == webhook ]] && chart+=(--set webhook.enabled=true,webhook.tls.mode=self-managed)

started=""
lab status > /dev/null 2>&1 || { lab up; started=yes; }
eval "$(lab env)"
archives=("$(lab image build | awk -v image="nvdra-$component:" 'index($1, image) { print $2 }')")
helm status nvdra --namespace nvdra-system > /dev/null 2>&1 && [[ -z $started ]] || archives=()
lab image load "${archives[@]}" > /dev/null
echo "▸ chart and $component"
helm upgrade --install "${chart[@]}" > /dev/null
if [[ $component == imex-daemon ]]; then
  # The controller would undo a change of their DaemonSets.
  kubectl delete pods --namespace nvdra-system --selector resource.nvidia.com/computeDomain --wait=false
elif [[ ${#archives[@]} -gt 0 ]]; then
  selector=(--namespace nvdra-system --selector "app.kubernetes.io/name=nvdra-$component")
  workload=$(kubectl get daemonset,deployment "${selector[@]}" --output name)
  kubectl rollout restart --namespace nvdra-system "$workload" > /dev/null
  kubectl rollout status --namespace nvdra-system "$workload" --timeout 120s
fi
kubectl get pods --namespace nvdra-system
cat << E2

The lab runs this tree's $component. Next:
  eval "\$(lab env)"                                       kubectl and helm talk to it
  kubectl apply -f e2e/quickstarts/1-two-pods-a-gpu-each.yaml
  kubectl logs -n nvdra-system -l app.kubernetes.io/name=nvdra-$component -f
  make try COMPONENT=$component                         after the next change
  lab down                                                nothing is left but the build cache
E2
