#!/bin/bash
# Pins every dependency of the workspace, tools included, into requirements.lock.
set -euo pipefail
cd "$(dirname "$0")/.."
export UV_CONSTRAINT=
tools=$(mktemp)
trap 'rm -f "$tools" "$tools.local"' EXIT
python3 - > "$tools" <<'P'
import tomllib
print("\n".join(tomllib.load(open("pyproject.toml", "rb"))["tool"]["hatch"]["envs"]["default"]["dependencies"]))
P
printf 'nvdra-api @ file://%s\nnvdra-cdi @ file://%s\nnvdra-sim @ file://%s\nnvdra-gpu-plugin @ file://%s\nnvdra-cd-controller @ file://%s\nnvdra-webhook @ file://%s\nnvdra-lab @ file://%s\n' "$PWD/packages/nvdra-api" "$PWD/packages/nvdra-cdi" "$PWD/e2e/sim" "$PWD/packages/nvdra-gpu-plugin" "$PWD/packages/nvdra-cd-controller" "$PWD/packages/nvdra-webhook" "$PWD/e2e/cluster" > "$tools.local"
.tools/bin/uv pip compile --quiet --universal --python-version 3.11 --no-header --no-emit-package nvdra-api --no-emit-package nvdra-cdi \
  --no-emit-package nvdra-sim --no-emit-package nvdra-gpu-plugin --no-emit-package nvdra-cd-controller --no-emit-package nvdra-webhook --no-emit-package nvdra-lab --all-extras --output-file requirements.lock \
  packages/*/pyproject.toml e2e/*/pyproject.toml testing/pyproject.toml "$tools" "$tools.local" "$@"
sed -i 's/^ *# via.*//; /^ *#/d; /^$/d' requirements.lock
echo "requirements.lock: $(wc -l < requirements.lock) pins"
