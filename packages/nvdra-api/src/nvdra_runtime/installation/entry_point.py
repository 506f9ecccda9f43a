# SPDX-License-Identifier: Apache-2.0
"""Starts `nvdra-check-installation`, which each installation of nvdra-api has, extras or not."""

from nvdra_runtime.extras import MissingExtraError


def main() -> None:
    """Run the command, or say which extra it needs.

    Raises:
        SystemExit: Always; 1 without the extra.
    """
    try:
        from nvdra_runtime.installation import command
    except MissingExtraError as error:
        raise SystemExit(f"Error: {error}") from None
    command.main()
