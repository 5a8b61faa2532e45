"""The suite's parameters: a test that asks for a guide, a model or an objective gets them all."""

from __future__ import annotations

import pytest

from tests.contract.registry import GUIDES, MODELS, OBJECTIVES


@pytest.fixture(params=GUIDES)
def make_guide(request):
    return GUIDES[request.param]


@pytest.fixture(params=MODELS)
def case(request):
    return MODELS[request.param]


@pytest.fixture(params=OBJECTIVES)
def make_objective(request):
    return OBJECTIVES[request.param]
