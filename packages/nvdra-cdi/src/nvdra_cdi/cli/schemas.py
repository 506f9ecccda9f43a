"""`nvdra-cdi schema`: the JSON schema of specs, for editors."""

import argparse

from nvdra_cdi import schema
from nvdra_cdi.cli.answers import Answer, data


def run(_: argparse.Namespace) -> Answer:
    """Print the schema."""
    return Answer(data(schema.document(), "json"))
