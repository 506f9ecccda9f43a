# SPDX-License-Identifier: Apache-2.0
"""Read and write CDI documents as YAML and compact JSON (docs/reference/cdi.md §5).

Reading is strict, and the field determines the type: `name: 0` is the name "0", `fileMode: 0666` is
octal. One parser reads both formats, because JSON is valid YAML. Writing is deterministic. The
rules of a document are checked in `validation`.
"""

import hashlib
import json
from typing import Any, Literal

from nvdra_cdi.encoding import decoder, yaml_writer
from nvdra_cdi.encoding.fields import FIELDS, ListOf, Object, StringMap
from nvdra_cdi.encoding.yaml_writer import PlainData
from nvdra_cdi.model import ContainerEdits, Device, Spec

Format = Literal["yaml", "json"]


def loads(data: bytes) -> Spec:
    """The first document in `data`, YAML or JSON.

    Raises:
        CodecError: The document is empty, malformed or too large, or has unknown fields, duplicate
            fields or values of the wrong type. The error contains all problems with their paths.
    """
    return decoder.decode(data)


def dumps(spec: Spec, fmt: Format = "yaml") -> bytes:
    """The encoded document. Equal input gives equal bytes.

    Args:
        spec: Encoded unchanged and unchecked; `files.write` sets the version and validates.
        fmt: `yaml`, starting with `---`, or `json`, compact without a trailing newline.
    """
    value = as_data(spec)
    return (yaml_writer.document(value) if fmt == "yaml" else _compact_json(value)).encode()


def digest(*edits: ContainerEdits) -> str:
    """A SHA-256 digest of the edits, 64 hexadecimal digits. Equal edits have equal digests."""
    return hashlib.sha256(_compact_json([as_data(edit) for edit in edits]).encode()).hexdigest()


def as_data(value: Spec | Device | ContainerEdits) -> dict[str, PlainData]:
    """A part of a document as dictionaries and lists, with JSON names, in the written order."""
    return _data(value)


def _compact_json(value: PlainData) -> str:
    # YAML parsers read it, too. They refuse some characters that JSON allows, and fold others.
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return "".join(map(yaml_writer.escaped, text))


def _data(value: Any) -> dict[str, PlainData]:
    plain: dict[str, PlainData] = {}
    for field in FIELDS[type(value)]:
        item = getattr(value, field.attribute)
        if not field.is_written(item):
            continue
        if isinstance(field.type, ListOf):
            nested = isinstance(field.type.item_type, Object)
            plain[field.key] = [_data(each) for each in item] if nested else list(item)
        elif isinstance(field.type, Object):
            plain[field.key] = _data(item)
        elif isinstance(field.type, StringMap):
            plain[field.key] = dict(sorted(item.items()))
        else:
            plain[field.key] = item
    return plain
