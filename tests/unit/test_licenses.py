# SPDX-License-Identifier: Apache-2.0
"""The licences of what is in images: what is found in wheels, Debian packages and Go programs."""

import re
from importlib import metadata
from pathlib import Path

import pytest

from scripts import collect_hook_licenses

ROOT = Path(__file__).parents[2]
licenses = collect_hook_licenses.licenses()

BUILD = (
    b"\0\xff Go buildinf:\x08\x02" + b"\0" * 16 + b"\x08go1.26.8\x10"
    b"path\texample.com/hook/cmd/hook\nmod\texample.com/hook\tv1.2.3\th1:abc=\n"
    b"dep\texample.com/one\tv1.0.0\th1:def=\n"
    b"dep\texample.com/two\tv2.0.0\n=>\texample.com/fork\tv2.1.0\th1:ghi=\n"
    b"build\t-trimpath=true\n\0"
)


def test_a_program_in_go_names_its_modules_and_the_library(tmp_path: Path) -> None:
    program = tmp_path / "hook"
    program.write_bytes(BUILD)
    assert licenses.go_modules(program) == {
        "example.com/hook": "v1.2.3",
        "example.com/one": "v1.0.0",
        "example.com/fork": "v2.1.0",
        "stdlib": "1.26.8",
    }


def test_a_program_that_names_none_is_refused(tmp_path: Path) -> None:
    program = tmp_path / "hook"
    program.write_bytes(b"\x7fELF something else")
    with pytest.raises(SystemExit, match="does not say of which modules"):
        licenses.go_modules(program)


def test_a_hook_with_a_module_of_unknown_licence_comes_into_no_image(tmp_path: Path) -> None:
    program = tmp_path / "nvidia-cdi-hook"
    program.write_bytes(BUILD)
    with pytest.raises(SystemExit, match=r"no licence text of example\.com/hook, .*: run python"):
        licenses.copy_hook_texts(program, tmp_path / "tree")


def test_the_texts_of_each_module_are_copied(tmp_path: Path) -> None:
    names = ("github.com/sirupsen/logrus", "golang.org/x/sys")
    program = tmp_path / "nvidia-cdi-hook"
    found = BUILD
    for old, new in zip((b"example.com/one", b"example.com/fork"), names, strict=True):
        found = found.replace(old, new.encode())
    program.write_bytes(found.replace(b"example.com/hook\t", b"golang.org/x/mod\t"))
    licenses.copy_hook_texts(program, tmp_path / "tree")
    made = tmp_path / "tree/usr/share/doc/nvidia-cdi-hook"
    assert (made / names[0] / "LICENSE").read_text().startswith("The MIT License")
    assert {path.name for path in (made / names[1]).iterdir()} == {"LICENSE", "PATENTS"}
    assert (made / "stdlib/LICENSE").exists()


def test_every_text_of_the_repository_is_recognized() -> None:
    modules = {
        str(path.parent.relative_to(licenses.HOOK_TEXTS))
        for path in licenses.HOOK_TEXTS.rglob("*")
        if path.is_file()
    }
    assert len(modules) > 20
    assert [each for each in modules if licenses.of_module(each) == licenses.UNKNOWN] == []
    assert licenses.of_module("github.com/NVIDIA/nvidia-container-toolkit") == "Apache-2.0"
    securejoin = licenses.of_module("github.com/cyphar/filepath-securejoin")
    assert securejoin == "BSD-3-Clause AND MPL-2.0"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Apache License\n                 Version 2.0, January 2004", "Apache-2.0"),
        ("Redistribution and use in source and binary forms", "BSD-2-Clause"),
        (
            "Redistribution and use in source and binary forms … to endorse or\npromote products",
            "BSD-3-Clause",
        ),
        ("Permission is hereby granted, free of charge, to any person", "MIT"),
        ("All rights reserved.", "NOASSERTION"),
    ],
)
def test_a_licence_is_known_by_its_words(text: str, expected: str) -> None:
    assert licenses.of_texts([text]) == expected


def distribution(tmp_path: Path, fields: str, files: dict[str, str]) -> metadata.Distribution:
    info = tmp_path / "thing-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: thing\nVersion: 1.0\n{fields}\n")
    lines = ["thing-1.0.dist-info/METADATA,,"]
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        lines.append(f"{name},,")
    (info / "RECORD").write_text("\n".join(lines))
    (found,) = metadata.distributions(path=[str(tmp_path)])
    return found


TEXT_FILE = {"thing-1.0.dist-info/licenses/LICENSE": "Permission is hereby granted, free of charge"}


@pytest.mark.parametrize(
    ("fields", "files", "expected"),
    [
        ("License-Expression: MIT OR Apache-2.0", {}, "MIT OR Apache-2.0"),
        ("License: Apache 2.0", {}, "Apache 2.0"),
        ("Classifier: License :: OSI Approved :: MIT License", {}, "MIT License"),
        (f"License: {'word ' * 40}", TEXT_FILE, "MIT"),
        ("", TEXT_FILE, "MIT"),
        ("", {}, "NOASSERTION"),
    ],
)
def test_what_a_distribution_says_of_its_licence(
    tmp_path: Path, fields: str, files: dict[str, str], expected: str
) -> None:
    assert licenses.of_distribution(distribution(tmp_path, fields, files)) == expected


def test_a_distribution_without_any_text_comes_into_no_image(tmp_path: Path) -> None:
    distribution(tmp_path, "License: MIT", {"thing.py": "# Permission\n"})
    with pytest.raises(SystemExit, match="thing brings no licence text: name the module"):
        licenses.copy_headers(tmp_path, tmp_path / "tree")
    assert not (tmp_path / "tree").exists()


def test_a_text_that_is_a_comment_only_is_written_into_the_image(tmp_path: Path) -> None:
    info = tmp_path / "nvidia_ml_py-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: nvidia-ml-py\nVersion: 1\n")
    (info / "RECORD").write_text("pynvml.py,,\n")
    (tmp_path / "pynvml.py").write_text(
        "#####\n# Copyright\n#\n#   * May be used\n#####\n\nx = 1\n"
    )
    licenses.copy_headers(tmp_path, tmp_path / "tree")
    made = tmp_path / "tree/usr/share/doc/nvidia-ml-py/copyright"
    assert made.read_text() == "Copyright\n\n  * May be used\n"


def test_the_licences_of_a_debian_package_are_read_if_programs_can_read_them() -> None:
    text = (
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\n"
        "Files: *\nCopyright: 1\nLicense: GPL-2+\n\nFiles: debian/*\nCopyright: 2\n"
        "License: public-domain\n It is free.\n\nLicense: GPL-2+\n See elsewhere.\n"
    )
    assert licenses.of_debian(text) == "GPL-2+ AND public-domain"
    assert licenses.of_debian("This package was debianized by hand.\n") == "NOASSERTION"


def test_the_notice_names_what_is_in_images_and_not_ours() -> None:
    notice = (ROOT / "NOTICE").read_text()
    for each in ("nvidia-cdi-hook", "filepath-securejoin", "PyPI", "Debian"):
        assert each in notice
    places = [found.rstrip(".") for found in re.findall(r"(?:images|e2e)/[\w/]+", notice)]
    assert [each for each in places if not (ROOT / each).exists()] == []
