# SPDX-License-Identifier: Apache-2.0
"""The number of values that a document has when it is written. Readers limit it."""

from typing import Any

from nvdra_cdi.encoding.fields import FIELDS, FieldType, ListOf, Object, StringMap


def values(document: Any) -> int:
    """The number of values in a spec or a part of one. Names of fields are values, too."""
    found = 1
    for field in FIELDS[type(document)]:
        item = getattr(document, field.attribute)
        if field.is_written(item):
            found += 1 + _values(item, field.type)
    return found


def _values(item: Any, kind: FieldType) -> int:
    if isinstance(kind, Object):
        return values(item)
    if isinstance(kind, StringMap):
        return 1 + 2 * len(item)
    if isinstance(kind, ListOf):
        return 1 + sum(_values(each, kind.item_type) for each in item)
    return 1
