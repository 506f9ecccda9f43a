# SPDX-License-Identifier: Apache-2.0
"""`nvdra-cdi generate`: generate the spec of this node's NVIDIA devices, like `nvidia-ctk`."""

import argparse
import posixpath
from pathlib import Path

from pydantic import ValidationError as InvalidOptions

from nvdra_cdi import codec, files, names, transforms
from nvdra_cdi.cli import nvml
from nvdra_cdi.cli.output import CommandOutput, UsageError
from nvdra_cdi.errors import DiscoveryError
from nvdra_cdi.model import Spec
from nvdra_cdi.nvidia import driver_root, generator
from nvdra_cdi.nvidia.options import GatedMode, Naming, Options, strip_root
from nvdra_cdi.rooted_files import RootedFiles

_THIS_HOST = RootedFiles()
_NO_DEVICE = "none"  # the name of the device without edits, which is always the only one
_DEFAULTS = {"mode": "auto", "vendor": "nvidia.com", "class_": "gpu", "driver_root": "/"}
_FLAGS = {
    "hook_path": "--nvidia-cdi-hook-path",
    "disabled_hooks": "--disable-hook",
    "enabled_hooks": "--enable-hook",
    "features": "--feature-flag",
    "library_search_paths": "--library-search-path",
    "config_search_paths": "--config-search-path",
}


def run(arguments: argparse.Namespace) -> CommandOutput:
    """Discover the devices of the node, and print the spec or write it to a file."""
    for name, value in _DEFAULTS.items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, value)
    kind = f"{arguments.vendor}/{arguments.class_}"
    names.validate_vendor(arguments.vendor)
    names.validate_class(arguments.class_)
    form = _output_format(arguments)
    spec = _generate(arguments, kind)
    if not arguments.no_all_device and spec.devices[0].name != _NO_DEVICE:
        spec = transforms.merge(spec, skip_existing=True)
    if arguments.output is None:
        return CommandOutput(files.encode(spec, form).decode())
    files.write(spec, arguments.output)
    devices = "1 device" if len(spec.devices) == 1 else f"{len(spec.devices)} devices"
    return CommandOutput(stderr_lines=(f"{arguments.output}: {devices} of {kind}",))


def _output_format(arguments: argparse.Namespace) -> codec.Format:
    by_name: codec.Format = "json" if (arguments.output or "").endswith(".json") else "yaml"
    if arguments.output is None:
        return "json" if arguments.format == "json" else "yaml"
    if arguments.format not in (None, by_name):
        raise UsageError(
            f"--format={arguments.format} contradicts --output={Path(arguments.output).name}:"
            " the extension of a spec file determines its format"
        )
    return by_name


def _generate(arguments: argparse.Namespace, kind: str) -> Spec:
    mode, options = arguments.mode, _options(arguments)
    if mode == "imex":
        return generator.imex_spec(options, arguments.device_id or ("all",), kind)
    if mode in list(GatedMode):
        return generator.gated_spec(options, GatedMode(mode), kind)
    if mode == "mig-caps":
        return generator.mig_capability_spec(options, arguments.device_id or ("all",), kind)
    if mode == "management":
        return generator.management_spec(_with_version(options, _version_if_known(options)), kind)
    with nvml.open_session(options.driver_root, options.library_search_paths) as session:
        options = _with_version(options, session.driver_version())
        chosen = generator.select(session.devices(), arguments.device_id or ("all",))
    namings = [Naming(name) for name in arguments.device_name_strategy or ("index", "uuid")]
    return generator.nvml_spec(options, chosen, namings, kind)


def _version_if_known(options: Options) -> str | None:
    """The driver version, or None without NVML: then the libraries determine the version."""
    try:
        with nvml.open_session(options.driver_root, options.library_search_paths) as session:
            return session.driver_version()
    except DiscoveryError:
        return None


def _with_version(options: Options, driver_version: str | None) -> Options:
    return options.model_copy(update={"driver_version": driver_version})


def _options(arguments: argparse.Namespace) -> Options:
    root = arguments.driver_root
    given = {
        "driver_root": root,
        "target_driver_root": arguments.target_driver_root,
        "dev_root": arguments.dev_root or driver_root.dev_root(_THIS_HOST, root),
        "sys_root": arguments.sys_root,
        "proc_root": arguments.proc_root,
        "hook_path": arguments.nvidia_cdi_hook_path,
        "ldconfig_path": arguments.ldconfig_path,
        "library_search_paths": _inside(root, "library_search_path", arguments),
        "config_search_paths": _inside(root, "config_search_path", arguments),
        "features": arguments.feature_flag,
        "disabled_hooks": arguments.disable_hook,
        "enabled_hooks": arguments.enable_hook,
    }
    try:
        return Options(**{name: value for name, value in given.items() if value is not None})
    except InvalidOptions as error:
        raise UsageError(_invalid_options_message(error)) from error


def _inside(root: str, name: str, arguments: argparse.Namespace) -> list[str]:
    """The paths within the driver root of directories on this machine, as `nvidia-ctk` takes them.

    Outside of the root, the toolkit finds the driver's version, but then looks for its libraries
    at the same path below the root.
    """
    top = posixpath.normpath(root)
    inside: list[str] = []
    for path in getattr(arguments, name) or ():
        found = strip_root(top, posixpath.normpath(path)) if path.startswith("/") else path
        if found is None:
            flag = "--" + name.replace("_", "-")
            raise UsageError(f"{flag}={path}: must be below --driver-root={top}")
        inside.append(found)
    return inside


def _invalid_options_message(error: InvalidOptions) -> str:
    wrong: dict[str, list[str]] = {}
    for found in error.errors():
        if found["type"] == "default_factory_not_called":
            continue  # a consequence of another error
        field = str(found["loc"][0])
        flag = _FLAGS.get(field, "--" + field.replace("_", "-"))
        said = found["msg"].removeprefix("Value error, ").replace("Input should", "must")
        wrong.setdefault(f"{flag}={found['input']}", []).append(said)
    return "; ".join(f"{flag}: {', or '.join(said)}" for flag, said in wrong.items())
