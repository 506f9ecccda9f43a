# SPDX-License-Identifier: Apache-2.0
"""The entry point of `nvdra-migrate`."""

import argparse
import json
import shlex
import sys
from collections.abc import Sequence

from nvdra_api import terminal_text

from nvdra_migrate import migration, report, values_file, values_text, wrapped_values
from nvdra_migrate.__about__ import __version__
from nvdra_migrate.values_file import STANDARD_INPUT
from nvdra_migrate.values_text import ValuesFileError
from nvdra_migrate.wrapped_values import WHOLE_FILE, AmbiguousValuesError, WrappedValues

EXIT_COMPLETE, EXIT_INCOMPLETE, EXIT_USAGE = 0, 1, 2

_ABOUT = """\
Move an installation of the driver dra-driver-nvidia-gpu to nvdra.

Manifests of workloads stay as they are. Only the values of the helm chart have other places.
"""
_VALUES_ABOUT = """\
Turn values of the chart dra-driver-nvidia-gpu (or nvidia-dra-driver-gpu) into a values file of the
chart nvdra.

FILE is a values file, what `helm get values` prints, or a file with the values inside: a
HelmRelease of Flux, an Application or ApplicationSet of Argo CD, a HelmChart of k3s or RKE2, a
helmfile, or the values of a chart that has that one as a dependency. The part that was read is
named on standard error; where several could be meant, --at chooses.

The new file is written to standard output. What could not be carried is listed on standard error,
each with the reason and what to do; so is what is carried with a change. A value that has the
default of that chart is left out: nvdra has defaults of its own (--all names those that differ).
"""
_VALUES_EXAMPLES = """\
examples:
  nvdra-migrate values old.yaml > values.yaml
  helm get values dra-driver-nvidia-gpu -n OLD -o yaml | nvdra-migrate values - > values.yaml
  nvdra-migrate values helmrelease.yaml > values.yaml      Flux
  nvdra-migrate values application.yaml > values.yaml      Argo CD, also an ApplicationSet
  nvdra-migrate values base.yaml application.yaml          with a file of its valueFiles
  nvdra-migrate values helmchart.yaml > values.yaml        k3s, RKE2, with its HelmChartConfig
  nvdra-migrate values helmfile.yaml > values.yaml         helmfile
  nvdra-migrate values platform.yaml > values.yaml         a chart with that one as a dependency
  nvdra-migrate values --at HelmRelease/gpu/dra:spec.values all.yaml > values.yaml
  nvdra-migrate values --at addons.gpu-dra old.yaml > values.yaml              below any key
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
    parts = []
    for file in given.files:
        reader = values_text.Reader()
        chosen = given.at if file is given.files[-1] else None
        try:
            documents = reader.documents(values_file.read(file))
            parts.append(wrapped_values.find(documents, reader, chosen))
        except (OSError, ValuesFileError) as error:
            _print_error(_refusal(file, error))
            return EXIT_USAGE
    result = migration.migrate(*wrapped_values.joined(parts))
    if given.json:
        sources = [part.place for part in parts]
        sys.stdout.write(f"{json.dumps(report.document(result, sources), indent=2)}\n")
    else:
        sys.stdout.write(values_text.write(result.values))
        _print_error(_sources(given.files, parts))
        _print_error(report.table(result, shows_all=given.all))
    return EXIT_COMPLETE if result.is_complete else EXIT_INCOMPLETE


def _sources(files: Sequence[str], parts: Sequence[WrappedValues]) -> str:
    """Which part of each file was read, unless it is the whole."""
    lines = [
        f"Read {part.place} of {_name(file)}\n"
        for file, part in zip(files, parts, strict=True)
        if part.place != WHOLE_FILE
    ]
    return "".join([*lines, "\n"]) if lines else ""


def _name(file: str) -> str:
    return "standard input" if file == STANDARD_INPUT else file


def _print_error(text: str) -> None:
    sys.stderr.write(terminal_text.lines(text))


def _refusal(file: str, error: OSError | ValuesFileError) -> str:
    reason = error.strerror if isinstance(error, OSError) else str(error)
    places = error.places if isinstance(error, AmbiguousValuesError) else ()
    choices = "".join(f"  --at {shlex.quote(place)}\n" for place in places)
    return f"error: {_name(file)}: {' '.join(str(reason).split())}\n{choices}"


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
    values.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="the file; - reads standard input. Of several files the last one wins, as with helm",
    )
    values.add_argument(
        "--at",
        metavar="PLACE",
        help="the part of the last file that has the values: keys with dots between them, after "
        "KIND/NAME: or KIND/NAMESPACE/NAME: in an object; . is the whole file. Without it the part "
        "is found, and several are listed",
    )
    values.add_argument(
        "--all", action="store_true", help="also list what is carried as it is or is not needed"
    )
    values.add_argument(
        "--json",
        action="store_true",
        help="write the new values and what became of each value to standard output, as JSON",
    )
    return parser
