# SPDX-License-Identifier: Apache-2.0
"""Specs of claim templates are kept as long as the templates exist."""

from nvdra_api.meta import JsonObject
from nvdra_cd_controller.template_specs import TemplateSpecs


def template(name: str, uid: str, **spec: object) -> JsonObject:
    return {"metadata": {"namespace": "team-a", "name": name, "uid": uid}, "spec": spec}


def test_a_template_that_was_created_again_has_a_spec_of_its_own() -> None:
    specs = TemplateSpecs(lambda _: None)
    specs.record(template("ring", "1", a=1))
    assert specs.get(template("ring", "1")) == {"a": 1}
    assert specs.get(template("ring", "2")) is None
    assert specs.get(template("other", "1")) is None


def test_templates_that_are_gone_are_forgotten() -> None:
    existing: dict[str, JsonObject] = {}
    specs = TemplateSpecs(existing.get)
    for number in range(3000):
        made = template(f"t{number}", str(number), n=number)
        if number % 100 == 0:
            existing[f"team-a/t{number}"] = made
        specs.record(made)
    assert all(specs.get(each) == each["spec"] for each in existing.values())
    known = sum(specs.get(template(f"t{n}", str(n))) is not None for n in range(3000))
    assert known <= 256 + 1 + len(existing)
