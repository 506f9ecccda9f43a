"""`nvdra-cdi generate`: the spec of this node's NVIDIA devices, as `nvidia-ctk` makes it."""

import argparse
from pathlib import Path

from pydantic import ValidationError as InvalidOptions

from nvdra_cdi import codec, files, names, transforms, validate, version
from nvdra_cdi.cli import nvml
from nvdra_cdi.cli.answers import Answer, UsageError
from nvdra_cdi.errors import DiscoveryError
from nvdra_cdi.host import Host
from nvdra_cdi.model import Spec
from nvdra_cdi.nvidia import generator, roots
from nvdra_cdi.nvidia.options import Naming, Options

_HERE = Host()
_NOTHING = "none"  # the device that gives nothing, always alone
_FLAGS = {
    "hook_path": "--nvidia-cdi-hook-path",
    "disabled_hooks": "--disable-hook",
    "enabled_hooks": "--enable-hook",
    "features": "--feature-flag",
    "library_search_paths": "--library-search-path",
    "config_search_paths": "--config-search-path",
}


def run(arguments: argparse.Namespace) -> Answer:
    """Look at the node, describe it, print the spec or write it to a file."""
    kind = f"{arguments.vendor}/{arguments.class_}"
    names.validate_vendor(arguments.vendor)
    names.validate_class(arguments.class_)
    form = _form(arguments)
    spec = _generated(arguments, kind)
    if not arguments.no_all_device and spec.devices[0].name != _NOTHING:
        spec = transforms.merge(spec, skip_existing=True)
    spec = version.with_minimum(spec)
    if arguments.output is None:
        validate.check(spec)
        return Answer(codec.dumps(spec, form).decode())
    files.write(spec, arguments.output)
    devices = "1 device" if len(spec.devices) == 1 else f"{len(spec.devices)} devices"
    return Answer(remarks=(f"{arguments.output}: {devices} of {kind}",))


def _form(arguments: argparse.Namespace) -> codec.Format:
    by_name: codec.Format = "json" if (arguments.output or "").endswith(".json") else "yaml"
    if arguments.output is None:
        return "json" if arguments.format == "json" else "yaml"
    if arguments.format not in (None, by_name):
        raise UsageError(
            f"--format={arguments.format} contradicts --output={Path(arguments.output).name}:"
            " readers of a spec directory go by the extension"
        )
    return by_name


def _generated(arguments: argparse.Namespace, kind: str) -> Spec:
    mode = arguments.mode
    if mode == "imex":
        return generator.imex(_options(arguments, None), arguments.device_id or ("all",), kind)
    if mode == "management":
        return generator.management(_options(arguments, _version_if_known(arguments)), kind)
    with nvml.opened(arguments.driver_root) as session:
        options = _options(arguments, session.driver_version())
        chosen = generator.select(session.devices(), arguments.device_id or ("all",))
    namings = [Naming(name) for name in arguments.device_name_strategy or ("index", "uuid")]
    return generator.nvml(options, chosen, namings, kind)


def _version_if_known(arguments: argparse.Namespace) -> str | None:
    """Management works on a node whose NVML does not; its libraries then name their version."""
    try:
        with nvml.opened(arguments.driver_root) as session:
            return session.driver_version()
    except DiscoveryError:
        return None


def _options(arguments: argparse.Namespace, driver_version: str | None) -> Options:
    given = {
        "driver_root": arguments.driver_root,
        "target_driver_root": arguments.target_driver_root,
        "dev_root": arguments.dev_root or roots.dev_root(_HERE, arguments.driver_root),
        "sys_root": arguments.sys_root,
        "proc_root": arguments.proc_root,
        "hook_path": arguments.nvidia_cdi_hook_path,
        "ldconfig_path": arguments.ldconfig_path,
        "library_search_paths": arguments.library_search_path,
        "config_search_paths": arguments.config_search_path,
        "features": arguments.feature_flag,
        "driver_version": driver_version,
        "disabled_hooks": arguments.disable_hook,
        "enabled_hooks": arguments.enable_hook,
    }
    try:
        return Options(**{name: value for name, value in given.items() if value is not None})
    except InvalidOptions as error:
        raise UsageError(_told(error)) from error


def _told(error: InvalidOptions) -> str:
    wrong: dict[str, list[str]] = {}
    for found in error.errors():
        if found["type"] == "default_factory_not_called":
            continue  # it would follow from what is wrong
        field = str(found["loc"][0])
        flag = _FLAGS.get(field, "--" + field.replace("_", "-"))
        said = found["msg"].removeprefix("Value error, ").replace("Input should", "must")
        wrong.setdefault(f"{flag}={found['input']}", []).append(said)
    return "; ".join(f"{flag}: {', or '.join(said)}" for flag, said in wrong.items())
