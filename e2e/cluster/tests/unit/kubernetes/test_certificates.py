# SPDX-License-Identifier: Apache-2.0
import base64
import datetime
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from nvdra_lab import model
from nvdra_lab.kubernetes import pki
from nvdra_lab.kubernetes.certificates import Authority, KeyPair
from nvdra_lab.layout import CONTROL_PLANE

NOW = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)
LAB = model.plan("lab", 0, 2, "dgx-h100", "1.36.3", {})


def certificate(pem: bytes) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pem)


def names(pem: bytes, kind: x509.ObjectIdentifier) -> list[str]:
    return [str(part.value) for part in certificate(pem).subject.get_attributes_for_oid(kind)]


def purposes(pem: bytes) -> set[x509.ObjectIdentifier]:
    return set(certificate(pem).extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)


def client_of(kubeconfig: bytes | str) -> bytes:
    user = yaml.safe_load(kubeconfig)["users"][0]["user"]
    return base64.b64decode(user["client-certificate-data"])


def test_a_client_is_known_by_name_and_groups() -> None:
    pair = Authority("ca", NOW).client("system:node:node-1", ["system:nodes"])
    assert names(pair.certificate, NameOID.COMMON_NAME) == ["system:node:node-1"]
    assert names(pair.certificate, NameOID.ORGANIZATION_NAME) == ["system:nodes"]
    assert purposes(pair.certificate) == {ExtendedKeyUsageOID.CLIENT_AUTH}


def test_a_server_is_valid_for_its_names_and_addresses() -> None:
    pair = Authority("ca", NOW).server("api", ["kubernetes", "10.96.0.1"])
    extensions = certificate(pair.certificate).extensions
    hosts = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert hosts.get_values_for_type(x509.DNSName) == ["kubernetes"]
    assert [str(ip) for ip in hosts.get_values_for_type(x509.IPAddress)] == ["10.96.0.1"]


def test_what_an_authority_signs_verifies_against_it_and_no_other() -> None:
    authority, other = Authority("ca", NOW), Authority("ca", NOW)
    leaf = certificate(authority.client("somebody").certificate)
    leaf.verify_directly_issued_by(certificate(authority.pair.certificate))
    with pytest.raises(InvalidSignature):
        leaf.verify_directly_issued_by(certificate(other.pair.certificate))


def test_a_certificate_is_valid_although_clocks_differ_a_little() -> None:
    leaf = certificate(Authority("ca", NOW).client("somebody").certificate)
    assert leaf.not_valid_before_utc < NOW < leaf.not_valid_after_utc


def test_every_key_belongs_to_its_certificate() -> None:
    def matches(pair: KeyPair) -> bool:
        key = serialization.load_pem_private_key(pair.key, None)
        return key.public_key() == certificate(pair.certificate).public_key()

    authority = Authority("ca", NOW)
    assert all(map(matches, (authority.pair, authority.client("a"), authority.peer("b", ["c"]))))


def test_each_node_is_itself_towards_the_api_server() -> None:
    identities = pki.create_identities(LAB, NOW)
    for node in LAB.nodes:
        pem = client_of(identities.files[node.name]["/etc/kubernetes/kubelet.conf"])
        assert names(pem, NameOID.COMMON_NAME) == [f"system:node:{node.name}"]
        assert names(pem, NameOID.ORGANIZATION_NAME) == ["system:nodes"]


def test_no_node_gets_the_authoritys_key() -> None:
    identities = pki.create_identities(LAB, NOW)
    authority_key = identities.files[CONTROL_PLANE][f"{pki.PKI}/ca.key"]
    for node in LAB.nodes:
        assert authority_key not in identities.files[node.name].values()


def test_only_the_administrator_is_a_master() -> None:
    identities = pki.create_identities(LAB, NOW)
    everything = {**identities.files[CONTROL_PLANE], **identities.files["node-1"]}
    for path, content in everything.items():
        if path.endswith(".conf"):
            groups = names(client_of(content), NameOID.ORGANIZATION_NAME)
            assert "system:masters" not in groups, path
    admin = client_of(identities.admin_kubeconfig)
    assert names(admin, NameOID.ORGANIZATION_NAME) == ["system:masters"]


def test_the_api_server_is_reached_by_link_service_and_name() -> None:
    pem = pki.create_identities(LAB, NOW).files[CONTROL_PLANE][f"{pki.PKI}/apiserver.crt"]
    extensions = certificate(pem).extensions
    hosts = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    addresses = {str(ip) for ip in hosts.get_values_for_type(x509.IPAddress)}
    assert {"10.95.0.2", "10.96.0.1"} <= addresses
    assert "kubernetes.default.svc" in hosts.get_values_for_type(x509.DNSName)


def test_every_file_lies_where_a_machine_looks_for_it() -> None:
    for files in pki.create_identities(LAB, NOW).files.values():
        assert all(Path(path).is_relative_to("/etc/kubernetes") for path in files)
