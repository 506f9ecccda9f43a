# SPDX-License-Identifier: Apache-2.0
"""`nvdra-cdi list`: list the devices, vendors, classes or specs of the spec directories."""

import argparse

from nvdra_cdi import names
from nvdra_cdi.cache import Cache
from nvdra_cdi.cli.output import CommandOutput, serialize, spec_error_data, spec_error_lines, table
from nvdra_cdi.encoding.yaml_writer import PlainData
from nvdra_cdi.index import LoadedSpec

_HEADINGS = {
    "devices": ("NAME", "SPEC"),
    "vendors": ("VENDOR",),
    "classes": ("CLASS",),
    "specs": ("SPEC", "KIND", "VERSION", "DEVICES"),
}


def run(arguments: argparse.Namespace) -> CommandOutput:
    """List devices, vendors, classes or specs, and warn about broken specs."""
    cache = Cache(arguments.spec_dir, auto_refresh=False)
    what, form = arguments.what, arguments.output
    items = _ITEMS[what](cache)
    errors = cache.get_errors()
    if form in ("json", "yaml"):
        found: dict[str, PlainData] = {what: items, "errors": spec_error_data(errors)}
        return CommandOutput(serialize(found, form))
    rows = [_row(item) for item in items]
    remarks = spec_error_lines(errors)
    if not rows:
        where = ", ".join(cache.get_spec_dirs())
        return CommandOutput(
            stderr_lines=(
                *remarks,
                f"no CDI {what} in {where}; use --spec-dir for other directories",
            )
        )
    if form == "name":
        return CommandOutput("".join(f"{row[0]}\n" for row in rows), remarks)
    return CommandOutput(table(_HEADINGS[what], rows), remarks)


def _row(item: PlainData) -> tuple[str, ...]:
    if not isinstance(item, dict):
        return (str(item),)
    if "kind" in item:
        devices = item["devices"]
        count = len(devices) if isinstance(devices, list) else 0
        return str(item["path"]), str(item["kind"]), str(item["version"]), str(count)
    return str(item["name"]), str(item["spec"])


def _devices(cache: Cache) -> list[PlainData]:
    return [_device(cache, name) for name in cache.list_devices()]


def _device(cache: Cache, name: str) -> PlainData:
    vendor, class_, device = names.parse_device(name)
    found = cache.get_device(name)
    assert found is not None  # it was listed, and the cache does not refresh itself
    item: dict[str, PlainData] = {
        "name": name,
        "vendor": vendor,
        "class": class_,
        "device": device,
        "spec": found.spec.path,
        "priority": found.spec.priority,
    }
    if found.device.annotations:
        item["annotations"] = dict(sorted(found.device.annotations.items()))
    return item


def _specs(cache: Cache) -> list[PlainData]:
    specs = (spec for vendor in cache.list_vendors() for spec in cache.get_vendor_specs(vendor))
    return [_spec(spec) for spec in sorted(specs, key=lambda spec: (spec.priority, spec.path))]


def _spec(loaded: LoadedSpec) -> PlainData:
    return {
        "path": loaded.path,
        "kind": loaded.spec.kind,
        "version": loaded.spec.version,
        "priority": loaded.priority,
        "devices": [device.name for device in loaded.spec.devices],
    }


_ITEMS = {
    "devices": _devices,
    "vendors": lambda cache: list(cache.list_vendors()),
    "classes": lambda cache: list(cache.list_classes()),
    "specs": _specs,
}
