# SPDX-License-Identifier: Apache-2.0
"""`nvdra-cdi transform root`: move the paths of a spec to another root, like `nvidia-ctk`."""

import argparse
import sys

from nvdra_cdi import codec, files, transforms
from nvdra_cdi.cli.output import CommandOutput
from nvdra_cdi.encoding.yaml_nodes import MAX_BYTES
from nvdra_cdi.model import Spec

_STANDARD_INPUT = "-"


def run(arguments: argparse.Namespace) -> CommandOutput:
    """Read the spec, change the root, and print the result or write it to a file."""
    source, target = arguments.from_, arguments.to
    spec = transforms.reroot(_spec(arguments.input), source, target, arguments.relative_to)
    if arguments.output is None:
        form: codec.Format = "json" if arguments.format == "json" else "yaml"
        return CommandOutput(files.encode(spec, form).decode())
    files.write(spec, arguments.output)
    return CommandOutput(stderr_lines=(f"{arguments.output}: {source} is now {target}",))


def _spec(source: str) -> Spec:
    if source == _STANDARD_INPUT:
        return files.decode(sys.stdin.buffer.read(MAX_BYTES + 1), "standard input")
    return files.read(source)
