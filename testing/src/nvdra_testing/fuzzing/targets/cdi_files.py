# SPDX-License-Identifier: Apache-2.0
"""CDI spec files and OCI configurations, which other programs of the node write."""

import json
import zlib
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Final

from nvdra_cdi import codec, files
from nvdra_cdi.cli import main
from nvdra_cdi.errors import CDIError

from nvdra_testing.fuzzing import documents, function_target

_SPEC: Final = {
    "cdiVersion": "0.8.0",
    "kind": "nvidia.com/gpu",
    "annotations": {"vendor.example/a": "b"},
    "devices": [
        {
            "name": "gpu-0",
            "annotations": {"vendor.example/c": "d"},
            "containerEdits": {
                "env": ["NVIDIA_VISIBLE_DEVICES=void"],
                "deviceNodes": [
                    {
                        "path": "/dev/nvidia0",
                        "hostPath": "/dev/nvidia0",
                        "type": "c",
                        "major": 195,
                        "minor": 0,
                        "fileMode": 438,
                        "permissions": "rwm",
                        "uid": 0,
                        "gid": 0,
                    }
                ],
                "mounts": [
                    {"hostPath": "/a", "containerPath": "/b", "options": ["ro", "bind"]},
                ],
                "hooks": [
                    {
                        "hookName": "createContainer",
                        "path": "/usr/bin/nvidia-cdi-hook",
                        "args": ["nvidia-cdi-hook", "update-ldcache"],
                        "env": ["A=b"],
                        "timeout": 7,
                    }
                ],
                "additionalGids": [44],
                "intelRdt": {"closID": "x"},
            },
        }
    ],
    "containerEdits": {"env": ["B=c"]},
}
_OCI: Final = {
    "ociVersion": "1.1.0",
    "process": {"env": ["PATH=/bin"], "user": {"uid": 0, "additionalGids": [1]}},
    "mounts": [{"destination": "/proc", "type": "proc", "source": "proc", "options": ["ro"]}],
    "hooks": {"prestart": [{"path": "/a", "args": ["a"], "timeout": 3}]},
    "linux": {
        "devices": [{"path": "/dev/x", "type": "c", "major": 1, "minor": 2}],
        "resources": {"devices": [{"allow": False, "access": "rwm"}]},
    },
}


def _command(*arguments: str) -> None:
    """Run `nvdra-cdi`, whose errors are lines."""
    output = StringIO()
    with redirect_stdout(output):
        main._write(main._run([*arguments]))
    output.getvalue().encode(errors="backslashreplace")  # as its streams do


def cdi_spec(case: bytes) -> None:
    """A spec: validated, listed, or used, as its bytes say."""
    directory = Path("specs")
    directory.mkdir(exist_ok=True)
    path = directory / "a.yaml"
    path.write_bytes(case)
    use = zlib.crc32(case) % 3
    if use == 0:
        _command("validate", str(path))
    elif use == 1:
        _command("list", f"--spec-dir={directory}")
    else:
        _read(path)


def _read(path: Path) -> None:
    try:
        spec = files.read(path)
    except CDIError as error:
        str(error).encode(errors="backslashreplace")
        return
    again = codec.dumps(spec)
    assert codec.loads(again) == spec, again


def oci_config(case: bytes) -> None:
    """The configuration of a container, into which a device is injected."""
    directory, config = Path("known"), Path("config.json")
    if not directory.exists():
        directory.mkdir()
        (directory / "a.json").write_text(json.dumps(_SPEC))
    config.write_bytes(case)
    _command("inject", f"--spec-dir={directory}", f"--config={config}", "nvidia.com/gpu=gpu-0")


_MAX_BYTES: Final = 256 << 10
"""Only root writes specs, of some 10 KiB. One of 4 MiB is read, too, and takes some seconds."""


def _is_small(case: bytes) -> bool:
    return len(case) <= _MAX_BYTES


TARGETS: Final = (
    function_target.target(
        cdi_spec,
        documents.yaml_texts([_SPEC]).filter(_is_small),
        [json.dumps(_SPEC).encode()],
    ),
    function_target.target(oci_config, documents.mutations([_OCI]), [json.dumps(_OCI).encode()]),
)
