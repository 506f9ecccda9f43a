# SPDX-License-Identifier: Apache-2.0
"""A real API server accepts what the models accept and refuses what they refuse."""

import json
import re
import shutil
import subprocess
import sys
import urllib.error
from pathlib import Path
from typing import Any

import pytest
from nvdra_api.meta import ObjectMeta
from nvdra_api.v1beta1 import ComputeDomain
from nvdra_api.v1beta1.compute_domain import (
    ComputeDomainChannelSpec,
    ComputeDomainResourceClaimTemplate,
    ComputeDomainSpec,
)
from nvdra_testing.control_plane import domain_objects
from nvdra_testing.control_plane.apiserver import ApiServer

README = (Path(__file__).parents[2] / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
COMMAND = "python domain.py | kubectl apply -f -"


@pytest.fixture(scope="module")
def defined(shared_apiserver_with_crds: ApiServer) -> ApiServer:
    """An API server with the definitions of the chart."""
    return shared_apiserver_with_crds


def kubectl(server: ApiServer, *arguments: str, given: str = "") -> str:
    program = shutil.which("kubectl")
    assert program is not None
    done = subprocess.run(
        [program, "--kubeconfig", str(server.kubeconfig), *arguments],
        input=given,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def domain(template: str = "ring-channel", mode: str = "Single", nodes: int = 0) -> ComputeDomain:
    return ComputeDomain(
        metadata=ObjectMeta(generate_name="ring-", namespace="default"),
        spec=ComputeDomainSpec(
            num_nodes=nodes,
            channel=ComputeDomainChannelSpec(
                resource_claim_template=ComputeDomainResourceClaimTemplate(name=template),
                allocation_mode=mode,
            ),
        ),
    )


def test_the_domain_of_the_readme_is_applied(defined: ApiServer) -> None:
    assert COMMAND in README
    (program,) = (each for each in EXAMPLES if "ComputeDomain(" in each)
    manifest = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert kubectl(defined, "apply", "-f", "-", given=manifest) == (
        "computedomain.resource.nvidia.com/ring created\n"
    )
    stored = json.loads(kubectl(defined, "get", "computedomain", "ring", "-o", "json"))
    read = ComputeDomain.model_validate(stored)
    assert read.uid
    assert read.problems() == ()
    assert read.spec.channel is not None
    assert read.spec.channel.resource_claim_template.name == "ring-channel"
    assert read.spec.channel.allocation_mode == "Single"


@pytest.mark.parametrize(
    "invalid",
    [
        domain(template=""),
        domain(template="Ring"),
        domain(template="a" * 254),
        domain(mode="Some"),
        domain(nodes=-1),
        ComputeDomain(metadata=ObjectMeta(generate_name="ring-", namespace="default")),
    ],
)
def test_the_api_server_refuses_what_has_a_problem(
    defined: ApiServer, invalid: ComputeDomain
) -> None:
    (problem,) = invalid.problems()
    manifest = invalid.to_manifest()
    manifest.setdefault("spec", {})
    refusal = refused(defined, manifest)
    assert problem.field in refusal


@pytest.mark.parametrize("valid", [domain(), domain(mode="All", nodes=2), domain(template="a.b")])
def test_the_api_server_accepts_what_has_no_problem(
    defined: ApiServer, valid: ComputeDomain
) -> None:
    assert valid.problems() == ()
    created = defined.create(domain_objects.domains_path("default"), valid.to_manifest())
    assert ComputeDomain.model_validate(created).spec == valid.spec


def refused(server: ApiServer, manifest: dict[str, Any]) -> str:
    """The message with which the API server refuses to create a domain."""
    with pytest.raises(urllib.error.HTTPError) as caught:
        server.create(domain_objects.domains_path("default"), manifest)
    with caught.value as answer:
        return str(json.loads(answer.read())["message"])
