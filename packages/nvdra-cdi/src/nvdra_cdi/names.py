"""Qualified device names, `vendor/class=device`: parse, build, check.

ASCII only. The rules are those of the CDI standard and its reference library (spec/cdi.md §3).
Lengths are a matter of validation (`validate`), because the reference library does not limit them.
"""

import re

from nvdra_cdi.errors import NameError_

_LETTERS = "A-Za-z"
QUALIFIER_PATTERN = rf"[{_LETTERS}](?:[{_LETTERS}0-9_.-]*[{_LETTERS}0-9])?"
"""A regular expression for a vendor or a class."""

DEVICE_PATTERN = rf"[{_LETTERS}0-9](?:[{_LETTERS}0-9_.:-]*[{_LETTERS}0-9])?"
"""A regular expression for a device's name."""

_QUALIFIER = re.compile(QUALIFIER_PATTERN, re.ASCII)
_DEVICE = re.compile(DEVICE_PATTERN, re.ASCII)


def validate_vendor(vendor: str) -> None:
    """Check the part before the slash, such as `nvidia.com`.

    Raises:
        NameError_: It is empty, or breaks the rule.
    """
    _check("vendor", vendor, _QUALIFIER)


def validate_class(class_: str) -> None:
    """Check the part between slash and equals sign, such as `gpu`.

    Raises:
        NameError_: It is empty, or breaks the rule.
    """
    _check("class", class_, _QUALIFIER)


def validate_device(device: str) -> None:
    """Check the part after the equals sign, such as `0:1`.

    Raises:
        NameError_: It is empty, or breaks the rule.
    """
    _check("device", device, _DEVICE)


def parse_device(text: str) -> tuple[str, str, str]:
    """Split into vendor, class and device; never raises.

    What is no qualified name comes back whole as the device, with vendor and class empty: a plain
    device path, for instance.
    """
    qualifier, equals, device = text.partition("=")
    vendor, slash, class_ = qualifier.partition("/")
    if text.startswith("/") or not (equals and device and slash and vendor and class_):
        return "", "", text
    return vendor, class_, device


def parse_qualifier(kind: str) -> tuple[str, str]:
    """Split a kind into vendor and class; one without both sides is all class, its vendor empty."""
    vendor, _, class_ = kind.partition("/")
    return (vendor, class_) if vendor and class_ else ("", kind)


def parse_qualified_name(text: str) -> tuple[str, str, str]:
    """Split and check `vendor/class=device`.

    Raises:
        NameError_: A part is missing or breaks its rule; the message quotes the whole text.
    """
    vendor, class_, device = parse_device(text)
    if not vendor:
        raise NameError_(f'"{text}" is not of the form vendor/class=device')
    try:
        validate_vendor(vendor)
        validate_class(class_)
        validate_device(device)
    except NameError_ as error:
        raise NameError_(f'"{text}" is no qualified device name: {error}') from error
    return vendor, class_, device


def is_qualified_name(text: str) -> bool:
    """Whether `parse_qualified_name` accepts it."""
    try:
        parse_qualified_name(text)
    except NameError_:
        return False
    return True


def qualified_name(vendor: str, class_: str, device: str) -> str:
    """The three parts as one name, unchecked."""
    return f"{vendor}/{class_}={device}"


def _check(part: str, value: str, rule: re.Pattern[str]) -> None:
    if not value:
        raise NameError_(f"empty {part}")
    if not rule.fullmatch(value):
        first = "a letter or digit" if part == "device" else "a letter"
        inner = '"_", "-", ".", ":"' if part == "device" else '"_", "-", "."'
        raise NameError_(
            f'{part} "{value}" must start with {first}, end with a letter or digit,'
            f" and hold only those and {inner}"
        )
