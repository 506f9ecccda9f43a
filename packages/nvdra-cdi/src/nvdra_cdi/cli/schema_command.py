# SPDX-License-Identifier: Apache-2.0
"""`nvdra-cdi schema`: print the JSON schema of specs, for editors."""

import argparse

from nvdra_cdi import json_schema
from nvdra_cdi.cli.output import CommandOutput, serialize


def run(_: argparse.Namespace) -> CommandOutput:
    """Print the JSON schema."""
    return CommandOutput(serialize(json_schema.document(), "json"))
