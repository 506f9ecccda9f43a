#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Pins every dependency of the workspace, tools included, into requirements.lock, those of the
# documentation site into requirements.docs.lock, and what is installed in images, at the same
# versions and with the hash of every file, into requirements.images.lock.
set -euo pipefail
cd "$(dirname "$0")/.."
export UV_CONSTRAINT=
tools=$(mktemp)
trap 'rm -f "$tools" "$tools.local"' EXIT
dependencies() {
  python3 - "$1" <<'P'
import sys, tomllib
print("\n".join(tomllib.load(open("pyproject.toml", "rb"))["tool"]["hatch"]["envs"][sys.argv[1]]["dependencies"]))
P
}
dependencies docs | .tools/bin/uv pip compile --quiet --universal --python-version 3.11 --no-header --no-annotate --upgrade \
  --output-file requirements.docs.lock -
dependencies default > "$tools"
not_pinned=()
for folder in packages/* e2e/sim e2e/cluster; do
  name=$(sed -n 's/^name = "\(.*\)"/\1/p' "$folder/pyproject.toml" | head -1)
  echo "$name @ file://$PWD/$folder" >> "$tools.local"
  not_pinned+=(--no-emit-package "$name")
done
.tools/bin/uv pip compile --quiet --universal --python-version 3.11 --no-header "${not_pinned[@]}" --all-extras --output-file requirements.lock \
  packages/*/pyproject.toml e2e/*/pyproject.toml testing/pyproject.toml "$tools" "$tools.local" "$@"
sed -i 's/^ *# via.*//; /^ *#/d; /^$/d' requirements.lock
echo "requirements.lock: $(wc -l < requirements.lock) pins"
.tools/bin/uv pip compile --quiet --universal --python-version 3.11 --no-header --no-annotate --generate-hashes "${not_pinned[@]}" --all-extras \
  --constraint requirements.lock --upgrade --output-file requirements.images.lock packages/*/pyproject.toml "$tools.local" requirements.images.in
echo "requirements.images.lock: $(grep -c == requirements.images.lock) pins"
