"""Forms of issues are what GitHub accepts: it drops a form with a key that it does not know."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

FORMS = Path(__file__).resolve().parents[2] / ".github" / "ISSUE_TEMPLATE"
ATTRIBUTES = {"label", "description", "placeholder", "value", "render"}


@pytest.mark.parametrize("name", sorted(path.name for path in FORMS.glob("*.yml") if path.name != "config.yml"))
def test_a_form_has_known_keys(name: str) -> None:
    form = yaml.safe_load((FORMS / name).read_text(encoding="utf-8"))
    assert set(form) <= {"name", "description", "title", "labels", "body"}
    for field in form["body"]:
        assert set(field) <= {"type", "id", "attributes", "validations"}
        assert set(field["attributes"]) <= ATTRIBUTES
        assert "label" in field["attributes"]
