#!/bin/bash
# Fills a folder with what the Dockerfiles of packages/ need, for docker or any other builder:
#   scripts/image_context.sh context nvdra-gpu-plugin nvdra-cd-plugin
# wheels/ gets the packages and all their dependencies, at the versions of requirements.lock, for the
# Python of the images and this architecture; nvidia-cdi-hook is built from the toolkit's Go module.
# Needs python3 with pip, Go 1.26 and a C compiler.
set -euo pipefail
repository=$(cd "$(dirname "$0")/.." && pwd)
context=$1
shift
mkdir -p "$context/wheels"
context=$(cd "$context" && pwd)
python=3.12
platforms=()
for libc in manylinux_2_34 manylinux_2_28 manylinux_2_17 manylinux2014; do
  platforms+=("--platform=${libc}_$(uname -m)")
done
ours=$(mktemp -d)
trap 'rm -rf "$ours"' EXIT
for package in "$repository"/packages/*/; do
  python3 -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$ours" "$package"
done
for package in "$@"; do
  python3 -m pip download --quiet --disable-pip-version-check --only-binary=:all: --implementation=cp \
    --python-version="$python" "${platforms[@]}" --find-links "$ours" \
    --constraint "$repository/requirements.lock" --dest "$context/wheels" "$package"
done
# The packages' own wheels are those of this tree, whatever an index has.
cp "$ours"/*.whl "$context/wheels/"
module=$(echo "$repository"/e2e/cluster/binaries/nvidia-container-toolkit-*)
toolkit=github.com/NVIDIA/nvidia-container-toolkit
(cd "$module" && CGO_ENABLED=1 CGO_CFLAGS="-O2 -Wno-deprecated-declarations" go build -trimpath \
  -ldflags "-s -w -X $toolkit/internal/info.version=${module##*-}" \
  -o "$context/nvidia-cdi-hook" "$toolkit/cmd/nvidia-cdi-hook")
echo "$context: $(find "$context/wheels" -name '*.whl' | wc -l) wheels and nvidia-cdi-hook ${module##*-}"
