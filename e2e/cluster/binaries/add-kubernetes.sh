#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Makes kubernetes-<version>/, which pins one more Kubernetes release:
#   add-kubernetes.sh 1.37.1
# The release's own go.mod names the modules that are its parts, each published with the same minor
# and patch; `go mod tidy` does the rest and checks every module against Go's checksum database.
# A part that the module proxy does not have in that version is taken in another:
#   add-kubernetes.sh 1.32.13 cri-client=v0.32.2
set -euo pipefail
cd "$(dirname "$0")"

version=${1:?which release? add-kubernetes.sh 1.37.1}
parts=("${@:2}")
theirs=$(go mod download -json "k8s.io/kubernetes@v$version" | sed -n 's/.*"GoMod": "\(.*\)",/\1/p')

mkdir "kubernetes-$version"
{
  echo "// The commands of this group, pinned. Built by e2e/cluster, never imported."
  echo "// Made by: add-kubernetes.sh $*"
  echo "module nvdra.invalid/binaries"
  grep -E '^(go|godebug) ' "$theirs" | sed 's/^/\n/'
  printf '\nrequire k8s.io/kubernetes v%s\n' "$version"
  printf '\nreplace (\n'
  sed -n 's|^\t\(k8s.io/.*\) => ./staging/.*|\1|p' "$theirs" | grep -v k8s.io/sample- |
    while read -r part; do
      chosen=v0.${version#*.}
      for given in "${parts[@]}"; do
        if [ "k8s.io/${given%=*}" = "$part" ]; then chosen=${given#*=}; fi
      done
      printf '\t%s => %s %s\n' "$part" "$part" "$chosen"
    done
  echo ")"
} > "kubernetes-$version/go.mod"
cat > "kubernetes-$version/tools.go" <<'PROGRAMS'
//go:build tools

// Package binaries names the commands that go.mod pins.
package binaries

import (
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
	_ "k8s.io/kubernetes/cmd/kube-controller-manager"
	_ "k8s.io/kubernetes/cmd/kube-scheduler"
	_ "k8s.io/kubernetes/cmd/kube-proxy"
	_ "k8s.io/kubernetes/cmd/kubelet"
	_ "k8s.io/kubernetes/cmd/kubectl"
)
PROGRAMS
cd "kubernetes-$version"
GOFLAGS=-mod=mod GOTOOLCHAIN=local go mod tidy
