"""The arguments of `nvdra-cdi`, and the help that teaches them."""

import argparse
from collections.abc import Callable

from nvdra_cdi.__about__ import __version__
from nvdra_cdi.cache import DEFAULT_DIRECTORIES

_ABOUT = """\
Container Device Interface specs: what devices are there, is a spec good, what does a container get.

A spec describes devices that containers ask for by name, vendor/class=device. Container runtimes
read the specs in /etc/cdi and /var/run/cdi; so does this command.
"""
_EXAMPLES = """\
examples:
  nvdra-cdi list                                   the devices that containers can ask for
  nvdra-cdi resolve nvidia.com/gpu=0               what a container gets with one of them
  nvdra-cdi validate                               what is wrong with the specs of this machine
  nvdra-cdi generate --output /var/run/cdi/nvidia.com-gpu.yaml
  nvdra-cdi inject nvidia.com/gpu=0 < config.json  the container's configuration with the device

Exit status: 0 done, 1 something is wrong with specs, names or the machine, 2 wrong arguments.
"""
_LIST_EXAMPLES = """\
examples:
  nvdra-cdi list
  nvdra-cdi list specs                             the files, their versions, how many devices
  nvdra-cdi list -o name | grep nvidia.com/gpu     one name a line
  nvdra-cdi list -o json | jq -r '.devices[].spec' | sort -u
  nvdra-cdi list --spec-dir ./specs                instead of /etc/cdi and /var/run/cdi
"""
_VALIDATE_EXAMPLES = """\
examples:
  nvdra-cdi validate                               all specs of this machine
  nvdra-cdi validate my-spec.yaml ./specs          a file, and the specs in a directory
  nvdra-cdi generate | nvdra-cdi validate --strict -
  nvdra-cdi validate -o json | jq '.files[] | select(.valid | not)'

An error keeps runtimes from using the file. A warning is about what runtimes accept and containers
then stumble over; with --strict it counts as an error.
"""
_INJECT_EXAMPLES = """\
examples:
  nvdra-cdi inject vendor.com/class=a vendor.com/class=b < config.json
  nvdra-cdi inject --config bundle/config.json --in-place vendor.com/class=a

Device nodes are looked up on this machine. If a name is unknown, nothing is applied.
"""
_RESOLVE_EXAMPLES = """\
examples:
  nvdra-cdi resolve nvidia.com/gpu=0
  nvdra-cdi resolve -o json nvidia.com/gpu=0 | jq '.devices[].deviceEdits.deviceNodes'
"""
_SCHEMA_EXAMPLES = """\
examples:
  nvdra-cdi schema > cdi.schema.json               and as the first line of a spec:
                                                   # yaml-language-server: $schema=cdi.schema.json
"""
_GENERATE_EXAMPLES = """\
examples:
  nvdra-cdi generate                               GPUs and MIG devices, by index and by UUID
  nvdra-cdi generate --device-id 0 --device-id 1:0
                                                   only these: a GPU, a MIG device of another
  nvdra-cdi generate --device-name-strategy uuid --no-all-device --format json
  nvdra-cdi generate --mode imex --class imex-channel
  nvdra-cdi generate --driver-root /run/nvidia/driver --output /var/run/cdi/nvidia.yaml

Mode nvml asks NVML for the GPUs: pip install 'nvdra-cdi[generate]'. Modes imex (the channels of
/dev/nvidia-caps-imex-channels) and management (everything, for the administrator's tools) do not.
The arguments are those of `nvidia-ctk cdi generate` where it has them.

Hooks: create-symlinks, chmod, update-ldcache, enable-cuda-compat, disable-device-node-modification,
update-application-profile, apply-cuda-memory-limits.
Feature flags: enable-explicit-driver-libraries, enable-coherent-annotations,
no-additional-gids-for-device-nodes, disable-ipc-discoverer.
"""
_VENDOR = "of the device names, NAME/class=device; default: nvidia.com"
_CLASS = "of the device names, vendor/NAME=device; default: gpu"


def parser() -> argparse.ArgumentParser:
    """The parser of the whole command."""
    command = argparse.ArgumentParser(
        prog="nvdra-cdi",
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("--version", action="version", version=f"nvdra-cdi {__version__}")
    commands = command.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, summary: str, examples: str) -> argparse.ArgumentParser:
        return commands.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
            epilog=examples,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    for name, summary, examples, fill in _COMMANDS:
        fill(add(name, summary, examples))
    return command


def _list(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "what",
        nargs="?",
        choices=("devices", "vendors", "classes", "specs"),
        default="devices",
        metavar="WHAT",
        help="devices, vendors, classes or specs; default: devices",
    )
    _spec_dir(command)
    _output(command, "table", "name", "json", "yaml")


def _validate(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "paths", nargs="*", metavar="PATH", help="a file, a directory, or - for standard input"
    )
    command.add_argument("--strict", action="store_true", help="warnings count as errors")
    _spec_dir(command)
    _output(command, "text", "json", "yaml")


def _inject(command: argparse.ArgumentParser) -> None:
    command.add_argument("names", nargs="+", metavar="NAME", help="vendor/class=device")
    command.add_argument(
        "--config",
        default="-",
        metavar="FILE",
        help="the container's OCI configuration, JSON; default: - for standard input",
    )
    command.add_argument(
        "--in-place", action="store_true", help="write the result back instead of printing it"
    )
    _spec_dir(command)


def _generate(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add(
        *("--mode", "--discovery-mode"),
        choices=("auto", "nvml", "imex", "management"),
        default="auto",
        help="what to describe; auto (default) is nvml",
    )
    add("--format", choices=("yaml", "json"), help="of what is printed; default: yaml")
    add("--output", metavar="FILE", help="write a file, .yaml or .json, instead of printing")
    add("--vendor", "--cdi-vendor", default="nvidia.com", metavar="NAME", help=_VENDOR)
    add("--class", "--cdi-class", dest="class_", default="gpu", metavar="NAME", help=_CLASS)
    add(
        *("--device-id", "--device-ids", "--device", "--devices"),
        action="append",
        metavar="ID",
        help="describe only this: an index, index:mig, a UUID, channelN, all; repeatable",
    )
    add(
        "--device-name-strategy",
        action="append",
        choices=("index", "type-index", "uuid"),
        help="how devices are called; repeatable; default: index and uuid",
    )
    add("--no-all-device", action="store_true", help='no device "all" that is all of them')
    add("--driver-root", default="/", metavar="DIR", help="root of the driver's files; default: /")
    add(
        "--target-driver-root",
        metavar="DIR",
        help="where the host sees that directory; default: at the same place",
    )
    add("--dev-root", metavar="DIR", help="the directory with dev/; found out if not given")
    add("--sys-root", metavar="DIR", help="default: /sys")
    add("--proc-root", metavar="DIR", help="default: /proc")
    add(
        *("--nvidia-cdi-hook-path", "--nvidia-ctk-path"),
        metavar="FILE",
        help="the hook program on the host; default: /usr/bin/nvidia-cdi-hook",
    )
    add("--ldconfig-path", metavar="FILE", help="ldconfig on the host, which hooks call")
    for flags, metavar, effect in (
        (("--disable-hook", "--disable-hooks"), "NAME", "leave out this hook, see below, or all"),
        (("--enable-hook", "--enable-hooks"), "NAME", "put in this hook"),
        (("--feature-flag", "--feature-flags"), "NAME", "switch something, see below"),
        (("--library-search-path",), "DIR", "where libraries are, instead of the usual places"),
        (("--config-search-path",), "DIR", "where configuration files are, likewise"),
    ):
        add(*flags, action="append", metavar=metavar, help=f"{effect}; repeatable")


def _resolve(command: argparse.ArgumentParser) -> None:
    command.add_argument("names", nargs="+", metavar="NAME", help="vendor/class=device")
    _spec_dir(command)
    _output(command, "text", "json", "yaml")


def _schema(_: argparse.ArgumentParser) -> None:
    """It has no arguments."""


def _spec_dir(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--spec-dir",
        action="append",
        default=[],
        metavar="DIR",
        help="where specs are, repeatable, the last wins; default: "
        + " and ".join(DEFAULT_DIRECTORIES),
    )


def _output(command: argparse.ArgumentParser, *forms: str) -> None:
    command.add_argument(
        *("-o", "--output"), choices=forms, default=forms[0], help=f"default: {forms[0]}"
    )
    command.add_argument(
        "--json", dest="output", action="store_const", const="json", help="same as -o json"
    )


_COMMANDS: tuple[tuple[str, str, str, Callable[[argparse.ArgumentParser], None]], ...] = (
    ("list", "list devices, vendors, classes or spec files", _LIST_EXAMPLES, _list),
    (
        "validate",
        "tell what is wrong with spec files, and what to do",
        _VALIDATE_EXAMPLES,
        _validate,
    ),
    ("inject", "put devices into a container's OCI configuration", _INJECT_EXAMPLES, _inject),
    ("generate", "describe the NVIDIA devices of this node", _GENERATE_EXAMPLES, _generate),
    ("schema", "print the JSON schema of specs, for editors", _SCHEMA_EXAMPLES, _schema),
    ("resolve", "tell what a device name stands for", _RESOLVE_EXAMPLES, _resolve),
)
