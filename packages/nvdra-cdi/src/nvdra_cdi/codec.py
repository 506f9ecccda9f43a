"""CDI documents as bytes: YAML and compact JSON, written and read (spec/cdi.md §5).

Reading is strict, and types follow the field: `name: 0` is the name "0", `fileMode: 0666` is
octal. JSON goes through the same parser, being YAML. Writing is deterministic. Nothing here checks
a rule of the document; that is `validate`.
"""

import hashlib
import json
from typing import Any, Literal

from nvdra_cdi import decoding, version, yamltext
from nvdra_cdi.errors import CodecError, Problem
from nvdra_cdi.fields import FIELDS, Items, Object, TextMap
from nvdra_cdi.model import ContainerEdits, Spec
from nvdra_cdi.yamltext import Plain

Format = Literal["yaml", "json"]

_OLD_MONITORING = "lower cdiVersion, or use enableMonitoring"


def loads(data: bytes) -> Spec:
    """The first document in `data`, YAML or JSON.

    Raises:
        CodecError: It is empty, malformed, too large, has an unknown or doubled field, or a value
            of the wrong type; the message says where.
    """
    spec = decoding.spec(data)
    if spec.version.removeprefix("v") == version.CURRENT and (found := version.problem(spec)):
        raise CodecError((Problem("cdiVersion", found, remedy=_OLD_MONITORING),))
    return spec


def dumps(spec: Spec, fmt: Format = "yaml") -> bytes:
    """The document, byte for byte the same for equal input.

    Args:
        spec: Written as it is; `files.write` sets the version and validates.
        fmt: `yaml`, starting with `---`, or `json`, compact without a trailing newline.
    """
    value = _plain(spec)
    return (yamltext.document(value) if fmt == "yaml" else _compact(value)).encode()


def digest(*edits: ContainerEdits) -> str:
    """A name for what the edits do: 64 hexadecimal digits, equal for equal edits in equal order."""
    return hashlib.sha256(_compact([_plain(each) for each in edits]).encode()).hexdigest()


def _compact(value: Plain) -> str:
    # YAML parsers read it too: they refuse some characters that JSON allows, and fold at others.
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return "".join(map(yamltext.escaped, text))


def _plain(value: Any) -> dict[str, Plain]:
    """A model object as the dictionary to write, without what is absent."""
    plain: dict[str, Plain] = {}
    for field in FIELDS[type(value)]:
        item = getattr(value, field.attribute)
        if item is None or not (item or field.keeps_zero):
            continue
        if isinstance(field.kind, Items):
            nested = isinstance(field.kind.of, Object)
            plain[field.key] = [_plain(each) for each in item] if nested else list(item)
        elif isinstance(field.kind, Object):
            plain[field.key] = _plain(item)
        elif isinstance(field.kind, TextMap):
            plain[field.key] = dict(sorted(item.items()))
        else:
            plain[field.key] = item
    return plain
