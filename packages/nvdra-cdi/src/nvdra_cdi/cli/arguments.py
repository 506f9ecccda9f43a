# SPDX-License-Identifier: Apache-2.0
"""The command-line arguments of `nvdra-cdi` and their help texts."""

import argparse
from collections.abc import Callable
from functools import partial

from nvdra_cdi.__about__ import __version__
from nvdra_cdi.cache import DEFAULT_DIRECTORIES
from nvdra_cdi.cli import values

_ABOUT = """\
List, validate, resolve, inject and generate Container Device Interface (CDI) specs.

A spec defines devices that containers request by name, vendor/class=device. Container runtimes read
the specs in /etc/cdi and /var/run/cdi. This command reads the same directories.
"""
_EXAMPLES = """\
examples:
  nvdra-cdi list                                   list the devices that containers can request
  nvdra-cdi resolve nvidia.com/gpu=0               show what a container gets with a device
  nvdra-cdi validate                               report the problems of this machine's specs
  nvdra-cdi generate --output /var/run/cdi/nvidia.com-gpu.yaml
  nvdra-cdi inject nvidia.com/gpu=0 < config.json  inject a device into an OCI configuration
  nvdra-cdi monitor                                print devices as they come, change and go

Exit status: 0 success, 1 a problem with specs, names or the machine, 2 wrong arguments.
"""
_LIST_EXAMPLES = """\
examples:
  nvdra-cdi list
  nvdra-cdi list specs                             the files, their versions, how many devices
  nvdra-cdi list -o name | grep nvidia.com/gpu     one name per line
  nvdra-cdi list -o json | jq -r '.devices[].spec' | sort -u
  nvdra-cdi list --spec-dir ./specs                instead of /etc/cdi and /var/run/cdi
"""
_VALIDATE_EXAMPLES = """\
examples:
  nvdra-cdi validate                               all specs of this machine
  nvdra-cdi validate my-spec.yaml ./specs          a file, and the specs in a directory
  nvdra-cdi generate | nvdra-cdi validate --strict -
  nvdra-cdi validate -o json | jq '.files[] | select(.valid | not)'

Runtimes do not use a file with an error. They accept a file with a warning, but containers that use
its devices may fail. With --strict, warnings count as errors.
"""
_INJECT_EXAMPLES = """\
examples:
  nvdra-cdi inject vendor.com/class=a vendor.com/class=b < config.json
  nvdra-cdi inject --config bundle/config.json --in-place vendor.com/class=a
  nvdra-cdi inject 'nvidia.com/gpu=*' < config.json

Device nodes are looked up on this machine. If a name is unknown, or a pattern matches no device, no
device is injected. In a pattern, * and ? match no slash, [a-c] and [^a] are sets of characters.
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
                                                   only a GPU, and a MIG device of another GPU
  nvdra-cdi generate --device-name-strategy uuid --no-all-device --format json
  nvdra-cdi generate --mode imex --class imex-channel
  nvdra-cdi generate --driver-root /run/nvidia/driver --output /var/run/cdi/nvidia.yaml
  nvdra-cdi generate --device-id 0,1:0 --library-search-path /opt/lib:/opt/lib64

Mode nvml queries NVML, which requires: pip install 'nvdra-cdi[generate]'. Mode imex describes the
channels in /dev/nvidia-caps-imex-channels. Mode management describes all device nodes of the
driver, for administrative tools. Modes gds, gdrcopy, mofed and nvswitch describe the devices of
other drivers, and mig-caps the capabilities config and monitor (--device-id=config,monitor).

The arguments and the environment variables (NVIDIA_CTK_…) have the names of those of
`nvidia-ctk cdi generate`. A flag that may be repeated also takes a comma list.

Hooks: create-symlinks, chmod, update-ldcache, enable-cuda-compat, disable-device-node-modification,
update-application-profile, apply-cuda-memory-limits.
Feature flags: enable-explicit-driver-libraries, enable-coherent-annotations,
no-additional-gids-for-device-nodes, disable-ipc-discoverer.
"""
mode = values.choice(
    *("auto", "nvml", "imex", "management", "gds", "gdrcopy", "mofed", "nvswitch", "mig-caps"),
    elsewhere={
        "csv": "describes Tegra systems, which nvdra-cdi does not: use nvidia-ctk cdi generate",
        "wsl": "describes GPUs of Windows (WSL2), which nvdra-cdi does not: use nvidia-ctk cdi "
        "generate",
    },
)
output_format = values.choice("yaml", "json")
device_name_strategies = values.choices("index", "type-index", "uuid")
_TRANSFORM_EXAMPLES = """\
examples:
  nvdra-cdi transform root --from /driver-root --to /run/nvidia/driver < spec.yaml
  nvdra-cdi transform root --from / --to /host --input a.yaml --output /var/run/cdi/a.yaml

A path is changed if it is the old root or below it. Arguments of hooks that run in the container's
namespaces are paths in the container. The result has the lowest version that it needs.
"""
_DIRS_EXAMPLES = """\
examples:
  nvdra-cdi dirs                                   the directory listed last has priority
  nvdra-cdi dirs -o json | jq '.directories[].errors'
"""
_MONITOR_EXAMPLES = """\
examples:
  nvdra-cdi monitor                                until interrupted with Ctrl-C
  nvdra-cdi monitor -o json | jq 'select(.what == "added").name'

The first lines are the devices and errors that there are.
"""
_VENDOR = "the vendor in device names, NAME/class=device; default: nvidia.com"
_CLASS = "the class in device names, vendor/NAME=device; default: gpu"


def parser() -> argparse.ArgumentParser:
    """The argument parser of the command."""
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
    command.add_argument(
        "names", nargs="+", metavar="NAME", help="vendor/class=device, or a pattern of such names"
    )
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
        type=mode,
        metavar="MODE",
        help="which devices to describe: nvml (or auto, the default), imex, management, gds,"
        " gdrcopy, mofed, nvswitch, mig-caps",
    )
    _format(command, "printed specs")
    add("--output", metavar="FILE", help="write a .yaml or .json file instead of printing the spec")
    add("--vendor", "--cdi-vendor", metavar="NAME", help=_VENDOR)
    add("--class", "--cdi-class", dest="class_", metavar="NAME", help=_CLASS)
    repeatable = partial(add, action="extend")
    repeatable(
        *("--device-id", "--device-ids", "--device", "--devices"),
        type=values.texts,
        metavar="ID",
        help="describe only this device: an index, index:mig, a UUID, channelN, all; repeatable",
    )
    repeatable(
        "--device-name-strategy",
        type=device_name_strategies,
        metavar="NAMES",
        help="how devices are named: index, type-index, uuid; repeatable; default: index and uuid",
    )
    add("--no-all-device", action="store_true", help='do not add the device "all"')
    add("--driver-root", metavar="DIR", help="root of the driver's files; default: /")
    add(
        "--target-driver-root",
        metavar="DIR",
        help="the path of the driver root on the host; default: the same path",
    )
    add("--dev-root", metavar="DIR", help="the directory that contains dev/; detected by default")
    add("--sys-root", metavar="DIR", help="default: /sys")
    add("--proc-root", metavar="DIR", help="default: /proc")
    add(
        *("--nvidia-cdi-hook-path", "--nvidia-ctk-path"),
        metavar="FILE",
        help="the hook program on the host; default: /usr/bin/nvidia-cdi-hook",
    )
    add("--ldconfig-path", metavar="FILE", help="ldconfig on the host, for the hooks")
    for flags, effect in (
        (("--disable-hook", "--disable-hooks"), "leave out this hook (see below), or all hooks"),
        (("--enable-hook", "--enable-hooks"), "include this hook"),
        (("--feature-flag", "--feature-flags"), "set a feature flag (see below)"),
    ):
        repeatable(*flags, type=values.texts, metavar="NAME", help=f"{effect}; repeatable")
    for name, below in (
        ("--library-search-path", "libraries"),
        ("--config-search-path", "configuration"),
    ):
        repeatable(
            name,
            type=values.paths,
            metavar="DIR",
            help=f"the directory below the driver root that contains {below}; repeatable, and a "
            "list like LD_LIBRARY_PATH",
        )


def _transform(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("what", choices=("root",), metavar="root", help="change the root of paths")
    add("--from", dest="from_", required=True, metavar="DIR", help="the old root")
    add("--to", required=True, metavar="DIR", help="the new root")
    add("--input", default="-", metavar="FILE", help="the spec; default: - for standard input")
    add("--output", metavar="FILE", help="write a .yaml or .json file instead of printing the spec")
    _format(command, "a printed spec")
    add(
        "--relative-to",
        choices=("host", "container"),
        default="host",
        help="which paths are changed, those on the host (default) or those in the container",
    )


def _dirs(command: argparse.ArgumentParser) -> None:
    _spec_dir(command)
    _output(command, "table", "name", "json", "yaml")


def _monitor(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--interval",
        type=values.seconds,
        default=1.0,
        metavar="SECONDS",
        help="how often the directories are looked at; default: 1",
    )
    _spec_dir(command)
    _output(command, "text", "json")


def _resolve(command: argparse.ArgumentParser) -> None:
    command.add_argument("names", nargs="+", metavar="NAME", help="vendor/class=device")
    _spec_dir(command)
    _output(command, "text", "json", "yaml")


def _schema(_: argparse.ArgumentParser) -> None:
    """The schema command has no arguments."""


def _spec_dir(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--spec-dir",
        action="extend",
        type=values.texts,
        default=[],
        metavar="DIR",
        help="a spec directory; repeatable, the last one has priority; default: "
        + " and ".join(DEFAULT_DIRECTORIES)
        + "; environment variable: NVIDIA_CTK_CDI_SPEC_DIRS",
    )


def _format(command: argparse.ArgumentParser, what: str) -> None:
    text = f"the format of {what}, yaml or json; default: yaml"
    command.add_argument("--format", type=output_format, metavar="FORMAT", help=text)


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
        "report the problems of spec files, with remedies",
        _VALIDATE_EXAMPLES,
        _validate,
    ),
    ("inject", "inject devices into a container's OCI configuration", _INJECT_EXAMPLES, _inject),
    ("generate", "describe the NVIDIA devices of this node", _GENERATE_EXAMPLES, _generate),
    ("schema", "print the JSON schema of specs, for editors", _SCHEMA_EXAMPLES, _schema),
    ("resolve", "show what a container gets with a device", _RESOLVE_EXAMPLES, _resolve),
    ("transform", "move the paths of a spec to another root", _TRANSFORM_EXAMPLES, _transform),
    ("dirs", "list the spec directories", _DIRS_EXAMPLES, _dirs),
    ("monitor", "print the changes of devices as they happen", _MONITOR_EXAMPLES, _monitor),
)
