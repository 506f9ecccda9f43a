# SPDX-License-Identifier: Apache-2.0
"""Generates the protobuf modules of nvdra-api from its .proto files.

    python scripts/generate_protos.py [DIRECTORY]

Writes to nvdra_runtime/_generated, or below DIRECTORY (a test compares the two). The compiler
is the one in grpcio-tools. The generated code needs its protobuf release or a later one, which
`nvdra-api[kubelet]` requires.
"""

import sys
from pathlib import Path

from grpc_tools import protoc

_PACKAGE = Path(__file__).resolve().parent.parent / "packages" / "nvdra-api"
SOURCES = _PACKAGE / "proto"
GENERATED = _PACKAGE / "src" / "nvdra_runtime" / "_generated"
_NOTE = '"""Made by scripts/generate_protos.py from proto/; do not edit."""\n'


def generate(target: Path) -> None:
    """Compile every .proto file; each directory becomes a package.

    Only messages are generated. `nvdra_runtime.kubeletplugin` binds the services by name, and uses
    the messages of v1 for v1beta1.
    """
    files = sorted(str(path.relative_to(SOURCES)) for path in SOURCES.rglob("*.proto"))
    target.mkdir(parents=True, exist_ok=True)
    code = protoc.main(
        ["protoc", f"-I{SOURCES}", f"--python_out={target}", f"--pyi_out={target}", *files]
    )
    if code != 0:
        raise SystemExit(f"protoc failed on {', '.join(files)}: exit code {code}")
    for directory in [target, *(path for path in target.rglob("*") if path.is_dir())]:
        if directory.name != "__pycache__":
            (directory / "__init__.py").write_text(_NOTE)


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else GENERATED)
