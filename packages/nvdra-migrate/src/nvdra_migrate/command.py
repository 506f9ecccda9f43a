"""The entry point of `nvdra-migrate`."""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from nvdra_api import terminal_text

from nvdra_migrate import migration, report, values_file
from nvdra_migrate.__about__ import __version__
from nvdra_migrate.values_file import STANDARD_INPUT, ValuesFileError

EXIT_COMPLETE, EXIT_INCOMPLETE, EXIT_USAGE = 0, 1, 2

_ABOUT = """\
Move an installation of the driver dra-driver-nvidia-gpu to nvdra.

Manifests of workloads stay as they are. Only the values of the helm chart have other places.
"""
_VALUES_ABOUT = """\
Turn a values file of the chart dra-driver-nvidia-gpu into one of the chart nvdra.

The new file is written to standard output. What could not be carried is listed on standard error,
each with the reason and what to do; so is what is carried with a change. A value that has the
default of that chart is left out: nvdra has defaults of its own (--all names those that differ).
"""
_VALUES_EXAMPLES = """\
examples:
  nvdra-migrate values old.yaml > values.yaml
  helm get values dra-driver-nvidia-gpu -n OLD -o yaml | nvdra-migrate values - > values.yaml
  nvdra-migrate values --all old.yaml > values.yaml    list every value and its new place
  nvdra-migrate values --json old.yaml | jq -r '.outcomes[] | select(.status == "not carried").path'

then:
  helm uninstall dra-driver-nvidia-gpu -n OLD
  helm install nvdra charts/nvdra -n OLD -f values.yaml \\
    --set nvdra-cd-controller.crds.install=always \\
    --set global.imageRegistry=registry.example.com   # where nvdra's images are

The CRDs of ComputeDomains stay when that chart is uninstalled. crds.install=always lets nvdra's
controller write its own in their place; without it `kubectl describe computedomain` says less.

Exit status: 0 everything was carried, 1 something was not (the file is written all the same), 2 the
file cannot be read, or wrong arguments.
"""


def main() -> None:
    """Run `nvdra-migrate` with the arguments of the process, then exit."""
    sys.exit(run(sys.argv[1:]))


def run(argv: Sequence[str]) -> int:
    """Run the command, and return its exit status."""
    given = _parser().parse_args(argv)
    try:
        values = values_file.read(given.file)
    except (OSError, ValuesFileError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        name = "standard input" if given.file == STANDARD_INPUT else given.file
        _print_error(f"error: {name}: {' '.join(str(reason).split())}\n")
        return EXIT_USAGE
    result = migration.migrate(values)
    if given.json:
        sys.stdout.write(f"{json.dumps(report.document(result), indent=2)}\n")
    else:
        sys.stdout.write(_yaml(result.values))
        _print_error(report.table(result, shows_all=given.all))
    return EXIT_COMPLETE if result.is_complete else EXIT_INCOMPLETE


def _print_error(text: str) -> None:
    sys.stderr.write(terminal_text.lines(text))


def _yaml(values: Mapping[str, Any]) -> str:
    """The values, readable, and with escapes where a terminal would not show what is there."""
    text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
    if terminal_text.lines(text) == text:
        return text
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=False)


def _parser() -> argparse.ArgumentParser:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="nvdra-migrate", description=_ABOUT, formatter_class=formatter
    )
    parser.add_argument("--version", action="version", version=f"nvdra-migrate {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    values = commands.add_parser(
        "values",
        help="turn a values file of that chart into one of the chart nvdra",
        description=_VALUES_ABOUT,
        epilog=_VALUES_EXAMPLES,
        formatter_class=formatter,
    )
    values.add_argument("file", metavar="FILE", help="the values file; - reads standard input")
    values.add_argument(
        "--all", action="store_true", help="also list what is carried as it is or is not needed"
    )
    values.add_argument(
        "--json",
        action="store_true",
        help="write the new values and what became of each value to standard output, as JSON",
    )
    return parser
