"""What the site's own extensions of Sphinx do, without a build."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Iterator

import pytest

import pyro_implicit
from tests.docs.pages import DOCS

pytest.importorskip("sphinx", reason="the site needs the extra 'docs'")


@pytest.fixture(autouse=True)
def extensions(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(DOCS / "_ext"))
    yield
    for name in ("gathered_pages", "repository_links", "reference_pages", "public_names"):
        sys.modules.pop(name, None)


def load(name: str) -> types.ModuleType:
    return importlib.import_module(name)


@pytest.mark.parametrize(
    ("page", "link", "becomes"),
    [
        ("results/index", "[a](../docs/results/cost.md)", "[a](/results/cost.md)"),
        ("results/index", "[records](records)", "records"),
        ("results/cost", "[n](../../tutorials/09_training_at_scale.ipynb)", None),
        ("results/cost", "[f](../../benchmarks/figures/scaling.png)", None),
        ("results/cost", "[b](posterior.md#worth)", "[b](/results/posterior.md#worth)"),
        ("project/contributing", "[CHANGELOG.md](CHANGELOG.md)", None),
        ("results/cost", "[web](https://pyro.ai)", "[web](https://pyro.ai)"),
        ("results/cost", "[gone](absent.csv)", "[gone](absent.csv)"),
    ],
)
def test_links_between_files_become_links_between_pages(
    page: str, link: str, becomes: str | None
) -> None:
    expected = {
        "n": "[n](/tutorials/09_training_at_scale.ipynb)",
        "f": "[f](../../benchmarks/figures/scaling.png)",
        "CHANGELOG.md": "[CHANGELOG.md](/project/changelog.md)",
    }
    name = link[1 : link.index("]")]
    assert load("repository_links").translate(link, page) == (becomes or expected[name])


@pytest.mark.long
def test_the_reference_has_every_name_of_every_sub_package() -> None:
    pages = load("reference_pages")
    modules = pages.public_modules()
    rooms = ("guides", "objectives", "generators", "training", "testing", "ops.logdet")
    assert {f"pyro_implicit.{room}" for room in rooms} <= set(modules)
    for name, module in modules.items():
        page = pages.page(name, module)
        for public in module.__all__:
            assert f"{name}.{public}" in page
    table = load("reference_pages").root_table()
    assert all(name in table for name in pyro_implicit.__all__ if not name.startswith("__"))


def test_a_value_without_a_word_is_refused() -> None:
    module = types.ModuleType("pyro_implicit.ops.logdet")
    with pytest.raises(ValueError, match="pyro_implicit.ops.logdet.absent has no comment"):
        load("reference_pages").described(module, "absent")


def test_names_that_differ_in_case_alone_have_pages_apart() -> None:
    found = load("reference_pages").file_names()
    assert found["pyro_implicit.diagnostics.C2ST"] != "pyro_implicit.diagnostics.C2ST"
    assert "pyro_implicit.diagnostics.c2st" not in found


@pytest.mark.parametrize(
    ("path", "page"),
    [
        ("pyro_implicit.ImplicitELBO", "pyro_implicit.objectives.ImplicitELBO"),
        ("pyro_implicit.objectives.particles.particle.Reads", "pyro_implicit.objectives.Reads"),
        ("pyro_implicit.ImplicitProcess.condition", None),
        ("pyro_implicit.guides.ImplicitGuide.model", None),
    ],
)
def test_other_paths_of_a_name(path: str, page: str | None) -> None:
    names = load("public_names").names_of(path)
    expected = (
        page
        or {
            "condition": "pyro_implicit.processes.ImplicitProcess.condition",
            "model": "pyro_implicit.guides.ImplicitGuide.model",
        }[path.rpartition(".")[2]]
    )
    assert expected in names


@pytest.mark.parametrize("path", ["pyro_implicit.Absent", "pyro_implicit.HyperNetworkGuide.absent"])
def test_what_is_not_there_has_no_path(path: str) -> None:
    assert load("public_names").names_of(path) == []
