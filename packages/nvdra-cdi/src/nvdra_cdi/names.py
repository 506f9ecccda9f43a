# SPDX-License-Identifier: Apache-2.0
"""Parse, build and check qualified device names: `vendor/class=device`.

Names are ASCII. The rules are those of the CDI specification and its reference library
(docs/reference/cdi.md §3). `validation` checks lengths, because the reference library does not
limit them.
"""

import re

from nvdra_cdi.errors import InvalidNameError

_LETTERS = "A-Za-z"
QUALIFIER_PATTERN = rf"[{_LETTERS}](?:[{_LETTERS}0-9_.-]*[{_LETTERS}0-9])?"
"""A regular expression for a vendor or a class."""

DEVICE_PATTERN = rf"[{_LETTERS}0-9](?:[{_LETTERS}0-9_.:-]*[{_LETTERS}0-9])?"
"""A regular expression for a device's name."""

_QUALIFIER = re.compile(QUALIFIER_PATTERN, re.ASCII)
_DEVICE = re.compile(DEVICE_PATTERN, re.ASCII)


def validate_vendor(vendor: str) -> None:
    """Check the part before the slash, for example `nvidia.com`.

    Raises:
        InvalidNameError: The vendor is empty or malformed.
    """
    _check("vendor", vendor, _QUALIFIER)


def validate_class(class_: str) -> None:
    """Check the part between the slash and the equals sign, for example `gpu`.

    Raises:
        InvalidNameError: The class is empty or malformed.
    """
    _check("class", class_, _QUALIFIER)


def validate_device(device: str) -> None:
    """Check the part after the equals sign, for example `0:1`.

    Raises:
        InvalidNameError: The device is empty or malformed.
    """
    _check("device", device, _DEVICE)


def parse_device(text: str) -> tuple[str, str, str]:
    """Split a name into vendor, class and device, without checking them.

    If the text is not a qualified name, for example a device path, vendor and class are empty and
    the device is the whole text.
    """
    qualifier, equals, device = text.partition("=")
    vendor, slash, class_ = qualifier.partition("/")
    if text.startswith("/") or not (equals and device and slash and vendor and class_):
        return "", "", text
    return vendor, class_, device


def parse_qualifier(kind: str) -> tuple[str, str]:
    """Split a kind into vendor and class. Without both parts, the whole text is the class."""
    vendor, _, class_ = kind.partition("/")
    return (vendor, class_) if vendor and class_ else ("", kind)


def parse_qualified_name(text: str) -> tuple[str, str, str]:
    """Split and check `vendor/class=device`.

    Raises:
        InvalidNameError: A part is missing or malformed. The message quotes the whole text.
    """
    vendor, class_, device = parse_device(text)
    if not vendor:
        raise InvalidNameError(f'"{text}" is not of the form vendor/class=device')
    try:
        validate_vendor(vendor)
        validate_class(class_)
        validate_device(device)
    except InvalidNameError as error:
        raise InvalidNameError(f'"{text}" is not a qualified device name: {error}') from error
    return vendor, class_, device


def is_qualified_name(text: str) -> bool:
    """Whether the text is a valid qualified name."""
    try:
        parse_qualified_name(text)
    except InvalidNameError:
        return False
    return True


def qualified_name(vendor: str, class_: str, device: str) -> str:
    """The qualified name of the three parts, which are not checked."""
    return f"{vendor}/{class_}={device}"


def _check(part: str, value: str, rule: re.Pattern[str]) -> None:
    if not value:
        raise InvalidNameError(f"empty {part}")
    if not rule.fullmatch(value):
        first = "a letter or digit" if part == "device" else "a letter"
        inner = '"_", "-", ".", ":"' if part == "device" else '"_", "-", "."'
        raise InvalidNameError(
            f'{part} "{value}" must start with {first}, end with a letter or digit,'
            f" and contain only those and {inner}"
        )
