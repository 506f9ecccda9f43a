# SPDX-License-Identifier: Apache-2.0
"""DNS names of daemons: no two domains have the same, except those of earlier releases."""

from nvdra_api.ids import DomainUID
from nvdra_imex_daemon.configuration import dns_names

ONE = DomainUID("5f4dcc3b-5aa7-4d83-8f52-000000000001")
OTHER = DomainUID("5f4dcc3b-5aa7-4d83-8f52-000000000002")


def test_two_domains_have_no_name_in_common() -> None:
    one, other = (dns_names.of_domain(uid, "domain") for uid in (ONE, OTHER))
    assert not {*one.all(18)} & {*other.all(18)}
    assert one == dns_names.of_domain(ONE, "domain")


def test_a_name_is_a_dns_label_with_the_domains_hash_and_the_index() -> None:
    name = dns_names.of_domain(ONE, "domain").name(9999)
    assert name == "compute-domain-daemon-be54fbcbf4-9999"
    assert len(name) < 64


def test_a_domain_of_an_earlier_release_keeps_the_names_that_it_has() -> None:
    assert list(dns_names.of_domain(ONE, "shared").all(2)) == [
        "compute-domain-daemon-0000",
        "compute-domain-daemon-0001",
    ]
