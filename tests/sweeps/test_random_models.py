"""
Random models x guides x objectives x options: values against brute force, and no raw error.

The default run takes a few cases; ``pytest -m slow`` takes 20 000, in chunks that can be split over
processes (``pytest -m slow tests/sweeps -k "chunk_3"``, or pytest-xdist). ``PYRO_IMPLICIT_SWEEP``
runs others: ``PYRO_IMPLICIT_SWEEP=1234:1`` the one case of seed 1234, as a failure tells, and
``PYRO_IMPLICIT_SWEEP=20000:5000`` five thousand new ones.
"""

from __future__ import annotations

import os
import re
from collections import Counter

import pytest

from tests.sweeps.random_cases import TOLD, draw_case, draw_nonsense
from tests.sweeps.random_models import NONSENSE
from tests.sweeps.run_case import run_case

SHORT, LONG, CHUNK = 25, 20_000, 500
ASKED = os.environ.get("PYRO_IMPLICIT_SWEEP")
SWEEP = range(LONG)
if ASKED:
    _first, _, _count = ASKED.partition(":")
    SWEEP = range(int(_first), int(_first) + int(_count or 1))
CHUNKS = [SWEEP[i : i + CHUNK] for i in range(0, len(SWEEP), CHUNK)]


def check(seeds: range, nonsense: bool = False) -> None:
    """Fails with one line for each case that neither held nor was refused for a reason."""
    lines: list[str] = []
    kinds: Counter[str] = Counter()
    for seed in seeds:
        spec = draw_nonsense(seed) if nonsense else draw_case(seed)
        outcome = run_case(spec)
        kinds[outcome.kind] += 1
        if outcome.kind not in ("ok", "refused"):
            lines.append(
                f"PYRO_IMPLICIT_SWEEP={seed}:1 ({spec.guide}, {spec.objective}"
                f"{', ' + spec.model.nonsense if nonsense else ''}): {outcome.kind} in "
                f"{outcome.stage}: {outcome.detail}"
            )
    assert not lines, "\n".join(lines)
    assert nonsense or len(seeds) < 20 or kinds["ok"] > 0.8 * len(seeds), kinds


@pytest.mark.long
@pytest.mark.skipif(bool(ASKED), reason="other cases were asked for")
def test_a_few_random_cases_hold() -> None:
    check(range(SHORT))


@pytest.mark.parametrize("chunk", CHUNKS, ids=lambda chunk: f"chunk_{chunk.start}")
@pytest.mark.slow
def test_random_cases_hold(chunk: range) -> None:
    check(chunk)


@pytest.mark.skipif(bool(ASKED), reason="other cases were asked for")
def test_a_little_nonsense_is_refused() -> None:
    check(range(20), nonsense=True)


@pytest.mark.slow
def test_nonsense_is_refused() -> None:
    check(range(1000), nonsense=True)


def test_the_same_seed_is_the_same_case() -> None:
    for seed in range(20):
        assert draw_case(seed) == draw_case(seed)


def test_the_sweep_meets_what_it_says() -> None:
    """That the generator did not lose a guide, an objective or a kind of site."""
    specs = [draw_case(seed) for seed in range(600)]
    pairs = {(spec.guide, spec.objective) for spec in specs}
    assert len({guide for guide, _ in pairs}) == 11
    assert len({objective for _, objective in pairs}) == 8
    assert len(pairs) > 55
    models = [spec.model for spec in specs]
    sites = [site for model in models for site in model.observed]
    assert {site.kind for site in sites} == {"sample", "factor", "loop"}
    assert {model.chooses for model in models if model.subsampled} == {"indices", "size", "model"}
    weights = [site.weight for model in models for site in (*model.observed, *model.latents)]
    assert {weight.scale for weight in weights} == {None, 0.5, 2.0, "tensor"}
    assert {weight.mask for weight in weights} == {None, True, False, "rows"}
    assert {draw_nonsense(seed).model.nonsense for seed in range(60)} == set(NONSENSE) == set(TOLD)
    assert all(re.compile(pattern) for pattern in TOLD.values())
