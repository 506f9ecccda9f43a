"""CDI documents as bytes: YAML and compact JSON, written and read (spec/cdi.md §5).

Reading is strict, and types follow the field: `name: 0` is the name "0", `fileMode: 0666` is
octal. JSON goes through the same parser, being YAML. Writing is deterministic. Nothing here checks
a rule of the document; that is `validate`.
"""

import hashlib
import json
from typing import Any, Literal

from nvdra_cdi import decoding, yamltext
from nvdra_cdi.fields import FIELDS, Items, Object, TextMap
from nvdra_cdi.model import ContainerEdits, Device, Spec
from nvdra_cdi.yamltext import Plain

Format = Literal["yaml", "json"]


def loads(data: bytes) -> Spec:
    """The first document in `data`, YAML or JSON.

    Raises:
        CodecError: It is empty, malformed, too large, has an unknown or doubled field, or a value
            of the wrong type; each such thing with its place.
    """
    return decoding.spec(data)


def dumps(spec: Spec, fmt: Format = "yaml") -> bytes:
    """The document, byte for byte the same for equal input.

    Args:
        spec: Written as it is; `files.write` sets the version and validates.
        fmt: `yaml`, starting with `---`, or `json`, compact without a trailing newline.
    """
    value = as_data(spec)
    return (yamltext.document(value) if fmt == "yaml" else _compact(value)).encode()


def digest(*edits: ContainerEdits) -> str:
    """A name for what the edits do: 64 hexadecimal digits, equal for equal edits in equal order."""
    return hashlib.sha256(_compact([as_data(each) for each in edits]).encode()).hexdigest()


def as_data(value: Spec | Device | ContainerEdits) -> dict[str, Plain]:
    """A part of a document as plain data, with the fields and the order it is written in."""
    return _data(value)


def _compact(value: Plain) -> str:
    # YAML parsers read it too: they refuse some characters that JSON allows, and fold at others.
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return "".join(map(yamltext.escaped, text))


def _data(value: Any) -> dict[str, Plain]:
    plain: dict[str, Plain] = {}
    for field in FIELDS[type(value)]:
        item = getattr(value, field.attribute)
        if item is None or not (item or field.keeps_zero):
            continue
        if isinstance(field.kind, Items):
            nested = isinstance(field.kind.of, Object)
            plain[field.key] = [_data(each) for each in item] if nested else list(item)
        elif isinstance(field.kind, Object):
            plain[field.key] = _data(item)
        elif isinstance(field.kind, TextMap):
            plain[field.key] = dict(sorted(item.items()))
        else:
            plain[field.key] = item
    return plain
