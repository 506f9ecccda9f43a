# SPDX-License-Identifier: Apache-2.0
from nvdra_sim.testing.real_kernel import debian

LISTING = """\
'http://deb.debian.org/debian/pool/qemu-system-x86_7.2%2bdfsg-7%2bdeb12u18%2bb3_amd64.deb' \
qemu-system-x86_1%3a7.2+dfsg-7+deb12u18+b3_amd64.deb 8700000 SHA256:00ff
'http://deb.debian.org/debian/pool/main/k/kmod/kmod_30%2b20221128-1_amd64.deb' \
kmod_30+20221128-1_amd64.deb 93000 SHA256:00ff
'http://deb.debian.org/debian/pool/main/s/seabios/seabios_1.16.2-1_all.deb' \
seabios_1.16.2-1_all.deb 175000 SHA256:00ff
"""
RECORD = """\
Package: linux-image-6.12-amd64
Version: 6.12.117-1~deb12u1
Depends: linux-image-6.12.117+deb12-amd64 (= 6.12.117-1~deb12u1)
Description-en: Linux 6.12 for 64-bit PCs (meta-package)
"""


def test_packages_have_the_version_that_apt_has_chosen() -> None:
    assert debian.archives(LISTING) == [
        "qemu-system-x86=1:7.2+dfsg-7+deb12u18+b3",
        "kmod=30+20221128-1",
        "seabios=1.16.2-1",
    ]


def test_the_kernel_is_what_its_package_depends_on() -> None:
    assert debian.kernel_image(RECORD) == "linux-image-6.12.117+deb12-amd64"
    assert debian.kernel_image(RECORD.replace("Depends", "Suggests")) is None


def test_modules_are_made_with_what_belongs_to_the_kernel() -> None:
    assert debian.build_packages("linux-image-6.12.117+deb12-amd64") == [
        "linux-headers-6.12.117+deb12-amd64",
        "linux-headers-6.12.117+deb12-common",
        "linux-kbuild-6.12.117+deb12",
    ]
