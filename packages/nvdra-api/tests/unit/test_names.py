# SPDX-License-Identifier: Apache-2.0
"""Names that are made from a domain's UID."""

from nvdra_api import names
from nvdra_api.ids import CliqueID, DomainUID

UID = DomainUID("11111111-2222-3333-4444-555555555555")


def test_names_are_made_from_the_uid_of_the_domain() -> None:
    assert names.daemon_name(UID) == f"computedomain-daemon-{UID}"
    assert names.clique_name(UID, CliqueID("a.2")) == f"{UID}.a.2"
