"""What Hugging Face Spaces reads: the front matter of README.md, and requirements.txt."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gradio
import yaml
from packaging.requirements import Requirement

from eagle_core import catalog

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))[
    "project"
]


def front_matter() -> dict[str, Any]:
    _, text, _ = (ROOT / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def test_requirements_are_the_projects_dependencies() -> None:
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    required = [line for line in lines if line and not line.startswith("#")]
    assert required == PROJECT["dependencies"]


def test_the_front_matter_is_complete_and_true() -> None:
    matter = front_matter()
    assert matter["sdk"] == "gradio"
    assert (ROOT / matter["app_file"]).is_file()
    assert len(matter["short_description"]) <= 60
    assert matter["license"] == PROJECT["license"].lower()
    assert matter["emoji"]
    assert matter["title"] == "EAGLE chat"
    (gradio_needed,) = (r for r in map(Requirement, PROJECT["dependencies"]) if r.name == "gradio")
    # Spaces installs this one whatever requirements.txt says; it is the one that is tested here.
    assert matter["sdk_version"] in gradio_needed.specifier
    assert matter["sdk_version"].split(".")[:2] == gradio.__version__.split(".")[:2]
    assert isinstance(matter["python_version"], str), "without quotes 3.10 would be 3.1"
    assert tuple(map(int, matter["python_version"].split("."))) >= (3, 10)
    name = catalog.default_entry().title.replace(" ", "-")
    assert [model.rsplit("/", 1)[-1] for model in matter["models"]] == [name]
