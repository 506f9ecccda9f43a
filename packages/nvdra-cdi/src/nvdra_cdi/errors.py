# SPDX-License-Identifier: Apache-2.0
"""The errors of nvdra-cdi. All are subclasses of `CDIError`.

CDIError
├── InvalidNameError        a vendor, class or device name breaks its rule
├── VersionError            `cdiVersion` is unknown, or too low for a field of the document
├── DocumentError           a document has problems; contains all of them
│   ├── CodecError          the bytes cannot be decoded as a CDI document
│   └── ValidationError     the document breaks rules
├── FileError               a spec file or directory could not be read, written or removed
├── ConflictError           two spec files of one priority define the same device
├── UnresolvedDevicesError  no spec defines these devices
├── InjectionError          the edits cannot be applied to a container's configuration
├── AnnotationError         an annotation that requests devices is malformed
├── TransformError          a document cannot be transformed as requested
└── DiscoveryError          the driver or a device node was not found
    └── MissingCapabilitiesError  `/proc/devices` does not list the capabilities of MIG
"""

from dataclasses import dataclass

MAX_PROBLEMS = 1000
"""The maximum number of errors, and of warnings, that one document has. There could be 100,000."""

_MAX_MESSAGE_CHARACTERS = 500  # the value that a message quotes can be megabytes long
_MAX_MESSAGE_PROBLEMS = 20


class CDIError(Exception):
    """Base class of all errors of nvdra-cdi."""


class InvalidNameError(CDIError):
    """A part of a qualified device name breaks its rule."""


class VersionError(CDIError):
    """A document's version is unknown, or lower than its content needs."""


class FileError(CDIError):
    """The file system refused to read, write or remove a spec."""


class ConflictError(CDIError):
    """Two spec files of equal priority define the same device, so its name is ambiguous."""


class UnresolvedDevicesError(CDIError):
    """No spec defines these devices, or several specs of equal priority do.

    Attributes:
        names: The names of all such devices, in the order of the request.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        super().__init__(f"unresolvable CDI devices {', '.join(names)}")


class InjectionError(CDIError):
    """Edits cannot be applied to this container's configuration on this host."""


class AnnotationError(CDIError):
    """An annotation that requests devices is malformed."""


class TransformError(CDIError):
    """A document cannot be transformed as requested."""


class DiscoveryError(CDIError):
    """Something that generation requires was not found on this machine."""


class MissingCapabilitiesError(DiscoveryError):
    """The kernel module has registered no major number for the capabilities of MIG instances."""


@dataclass(frozen=True)
class Problem:
    """One broken rule.

    Attributes:
        path: The place, in JSON field names: `devices[0].containerEdits.env[2]`.
        message: The rule and the value that breaks it.
        device: The name of the device that contains the path, or empty.
        is_warning: Whether the CDI specification or its reference library tolerates the problem.
            nvdra-cdi reads such a document, but does not write it.
        line: The line in the document, counted from 1, or 0 if it is unknown.
        remedy: How to solve the problem.
    """

    path: str
    message: str
    device: str = ""
    is_warning: bool = False
    line: int = 0
    remedy: str = ""

    def __str__(self) -> str:
        where = f'{self.path} (device "{self.device}")' if self.device else self.path
        line = f" (line {self.line})" if self.line else ""
        return one_line(f"{where}: {self.message}" if where else self.message) + line


class DocumentError(CDIError):
    """A document has problems.

    Attributes:
        problems: All problems, in document order; of more than `MAX_PROBLEMS`, the first. The
            error's message has the first of these.
        source: The file that the document was read from or would be written to, or empty.
    """

    def __init__(self, problems: tuple[Problem, ...], source: str = "") -> None:
        self.problems = problems
        self.source = source
        texts = [str(problem) for problem in problems[:_MAX_MESSAGE_PROBLEMS]]
        if len(problems) > len(texts):
            texts.append(f"and {len(problems) - len(texts)} more problems")
        super().__init__((f"{source}: " if source else "") + "; ".join(texts))


class CodecError(DocumentError):
    """The bytes cannot be decoded as a CDI document."""


class ValidationError(DocumentError):
    """A document breaks at least one rule."""


def one_line(text: str) -> str:
    """The text for a message: shortened, with control characters and line breaks escaped."""
    if len(text) > _MAX_MESSAGE_CHARACTERS:
        half = _MAX_MESSAGE_CHARACTERS // 2
        text = f"{text[:half]} … {text[-half:]}"
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
