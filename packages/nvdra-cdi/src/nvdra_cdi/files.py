# SPDX-License-Identifier: Apache-2.0
"""Name, read, write and remove spec files (docs/reference/cdi.md §6).

Writes are atomic: at any moment, and after a power failure, a runtime that reads the directory sees
either the old document or the new one.
"""

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nvdra_cdi import codec, diagnostics, names, validation, version
from nvdra_cdi.encoding.yaml_nodes import MAX_BYTES, SPLIT_REMEDY, too_long_message
from nvdra_cdi.errors import CodecError, FileError, Problem, ValidationError
from nvdra_cdi.model import Spec

_MODE = 0o644  # a runtime may run as another user
_DIRECTORY_MODE = 0o755
_MAX_NAME_BYTES = 255
_SUFFIXES = (".yaml", ".json")
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY  # opening must never block
_TEMPORARY = "spec.{}.tmp"  # runtimes ignore this extension
_SPEC_NAME_CHARACTERS = 48  # characters of the spec's name in the name of its temporary file


def spec_name(vendor: str, class_: str) -> str:
    """The file name of the spec of a vendor and class.

    Raises:
        InvalidNameError: The vendor or the class is empty or malformed.
    """
    names.validate_vendor(vendor)
    names.validate_class(class_)
    return f"{vendor}-{class_}.yaml"


def transient_name(vendor: str, class_: str, id_: str) -> str:
    """The file name of a spec with the lifetime of another object.

    Args:
        vendor: For example `k8s.gpu.nvidia.com`.
        class_: For example `claim`.
        id_: The id of the object, for example the UID of a claim. A slash is replaced with `_`.

    Raises:
        InvalidNameError: The vendor or the class is empty or malformed.
        FileError: The id cannot be part of a file name.
    """
    stem = spec_name(vendor, class_).removesuffix(".yaml")
    name = f"{stem}_{id_.replace('/', '_')}.yaml"
    size = len(name.encode(errors="surrogatepass"))
    if id_ in ("", ".", "..") or "\0" in id_ or size > _MAX_NAME_BYTES:
        raise FileError(f"{id_!r} cannot be part of a file name")
    return name


def is_spec_name(name: str) -> bool:
    """Whether readers of a spec directory read files with this name."""
    return name.endswith(_SUFFIXES)


def with_extension(name: str) -> str:
    """The name with `.yaml` appended, unless it has the extension of a spec file."""
    return name if is_spec_name(name) else f"{name}.yaml"


def encode(spec: Spec, fmt: codec.Format = "yaml", source: str = "") -> bytes:
    """The content of a spec's file, which every reader accepts.

    `cdiVersion` is set to the lowest version that the document needs, so that old runtimes can read
    it.

    Args:
        spec: The document.
        fmt: `yaml` or `json`.
        source: The file, for errors.

    Raises:
        ValidationError: The spec breaks a rule, or is larger than readers accept.
    """
    spec = version.with_minimum(spec)
    validation.check(spec, source=source)
    data = codec.dumps(spec, fmt)
    if len(data) > MAX_BYTES:
        raise ValidationError((Problem("", too_long_message(), remedy=SPLIT_REMEDY),), source)
    return data


def write(spec: Spec, path: Path | str, *, overwrite: bool = True) -> None:
    """Validate a spec and write it to `path` atomically, synced to disk, with mode 0644.

    The content is that of `encode`. A missing directory is created with mode 0755. The extension,
    `.yaml` or `.json`, selects the format.

    Args:
        spec: The document.
        path: The file.
        overwrite: Whether to replace an existing file. If not, an existing file is an error.

    Raises:
        ValidationError: The spec breaks a rule, or is larger than readers accept. No file was
            written.
        FileError: The file cannot be written, has another extension, or no file can have this path:
            it contains a NUL, for example. An existing file is unchanged.
    """
    path = Path(path)
    if not is_spec_name(path.name):
        raise FileError(f"{path}: runtimes read only files that end in .yaml or .json")
    data = encode(spec, "json" if path.name.endswith(".json") else "yaml", str(path))
    with _file_errors("write", path):
        path.parent.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
        _write_atomically(path, data, overwrite=overwrite)


def read(path: Path | str) -> Spec:
    """Read and validate the spec in a file. Warnings are ignored.

    Raises:
        FileError: The file cannot be read, or is not a regular file.
        CodecError: The file is not a CDI document.
        ValidationError: The document breaks a rule of the CDI specification.
    """
    return decode(read_bytes(path), str(path))


def decode(data: bytes, source: str = "") -> Spec:
    """The valid spec in the content of a file. Warnings are ignored.

    Args:
        data: The content.
        source: The file, for errors.

    Raises:
        CodecError: The content is not a CDI document.
        ValidationError: The document breaks a rule of the CDI specification.
    """
    try:
        spec = codec.loads(data)
        validation.check(spec, strict=False)
    except (CodecError, ValidationError) as error:
        raise type(error)(diagnostics.with_lines(error.problems, data), source) from error
    return spec


def read_bytes(path: Path | str) -> bytes:
    """Read a file, up to one byte more than the maximum size of a document.

    FIFOs and devices are not opened, because that could block or have side effects.

    Raises:
        FileError: The file cannot be read, is not a regular file, or no file can have this path.
    """
    with _file_errors("read", path):
        if not stat.S_ISREG(Path(path).stat().st_mode):
            raise FileError(f"cannot read {path}: it is not a regular file")
        with os.fdopen(os.open(path, _READ), "rb") as file:
            return file.read(MAX_BYTES + 1)


def remove(path: Path | str) -> None:
    """Remove a spec file, if it exists.

    Raises:
        FileError: The file cannot be removed, or no file can have this path.
    """
    path = Path(path)
    with _file_errors("remove", path):
        path.unlink(missing_ok=True)
        if path.parent.is_dir():
            _sync_directory(path.parent)


def remove_temporary_files(directory: Path | str, before: float, name_prefix: str = "") -> None:
    """Remove the temporary files that killed writers left behind.

    Args:
        directory: The spec directory. It need not exist.
        before: Remove only files last modified before this time, in seconds since the epoch.
        name_prefix: Remove only files of specs whose names start with this prefix, for example
            `k8s.gpu.nvidia.com-device`.

    Raises:
        FileError: A file cannot be removed.
    """
    with _file_errors("clean up", directory):
        for path in Path(directory).glob(
            _TEMPORARY.format(f"{name_prefix[:_SPEC_NAME_CHARACTERS]}*")
        ):
            if path.lstat().st_mtime < before:
                path.unlink(missing_ok=True)


def rewrite(path: Path | str, data: bytes) -> None:
    """Replace the content of a file atomically. Mode and owner stay the same.

    Raises:
        FileError: The file does not exist or cannot be written, or no file can have this path.
    """
    with _file_errors("write", path):
        target = Path(path).resolve()
        _write_atomically(target, data, overwrite=True, attributes=target.stat())


@contextmanager
def _file_errors(verb: str, path: Path | str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FileError(f"cannot {verb} {path}: {error.strerror}") from error
    except ValueError as error:  # the path contains a NUL or cannot be encoded
        raise FileError(f"cannot {verb} {str(path)!r}: {error}") from error


def _write_atomically(
    path: Path, data: bytes, *, overwrite: bool, attributes: os.stat_result | None = None
) -> None:
    whose = f"{path.stem[:_SPEC_NAME_CHARACTERS]}.{secrets.token_hex(8)}"
    temporary = path.parent / _TEMPORARY.format(whose)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            if attributes is not None:
                os.fchown(file.fileno(), attributes.st_uid, attributes.st_gid)
            os.fchmod(
                file.fileno(), stat.S_IMODE(attributes.st_mode) if attributes is not None else _MODE
            )
            file.flush()
            os.fsync(file.fileno())
        if overwrite:
            temporary.replace(path)
        else:
            path.hardlink_to(temporary)
            temporary.unlink()
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
