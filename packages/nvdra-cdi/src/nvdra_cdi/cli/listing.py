"""`nvdra-cdi list`: what the spec directories offer."""

import argparse

from nvdra_cdi import names
from nvdra_cdi.cache import Cache
from nvdra_cdi.cli.answers import Answer, complaints, complaints_data, data, table
from nvdra_cdi.index import LoadedSpec
from nvdra_cdi.yamltext import Plain

_HEADINGS = {
    "devices": ("NAME", "SPEC"),
    "vendors": ("VENDOR",),
    "classes": ("CLASS",),
    "specs": ("SPEC", "KIND", "VERSION", "DEVICES"),
}


def run(arguments: argparse.Namespace) -> Answer:
    """List devices, vendors, classes or specs; what is broken is remarked on beside them."""
    cache = Cache(arguments.spec_dir, auto_refresh=False)
    what, form = arguments.what, arguments.output
    items = _ITEMS[what](cache)
    errors = cache.get_errors()
    if form in ("json", "yaml"):
        found: dict[str, Plain] = {what: items, "errors": complaints_data(errors)}
        return Answer(data(found, form))
    rows = [_row(item) for item in items]
    remarks = complaints(errors)
    if not rows:
        where = ", ".join(cache.get_spec_dirs())
        return Answer(remarks=(*remarks, f"no CDI {what} in {where}; --spec-dir looks elsewhere"))
    if form == "name":
        return Answer("".join(f"{row[0]}\n" for row in rows), remarks)
    return Answer(table(_HEADINGS[what], rows), remarks)


def _row(item: Plain) -> tuple[str, ...]:
    if not isinstance(item, dict):
        return (str(item),)
    if "kind" in item:
        devices = item["devices"]
        count = len(devices) if isinstance(devices, list) else 0
        return str(item["path"]), str(item["kind"]), str(item["version"]), str(count)
    return str(item["name"]), str(item["spec"])


def _devices(cache: Cache) -> list[Plain]:
    return [_device(cache, name) for name in cache.list_devices()]


def _device(cache: Cache, name: str) -> Plain:
    vendor, class_, device = names.parse_device(name)
    found = cache.get_device(name)
    assert found is not None  # listed, and nothing was refreshed since
    item: dict[str, Plain] = {
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


def _specs(cache: Cache) -> list[Plain]:
    specs = (spec for vendor in cache.list_vendors() for spec in cache.get_vendor_specs(vendor))
    return [_spec(spec) for spec in sorted(specs, key=lambda spec: (spec.priority, spec.path))]


def _spec(loaded: LoadedSpec) -> Plain:
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
