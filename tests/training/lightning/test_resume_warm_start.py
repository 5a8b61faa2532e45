"""An objective that remembers vectors: a run taken up from a checkpoint ends in the same bits."""

from __future__ import annotations

from functools import partial

import pytest
import torch

pytest.importorskip("lightning", reason="needs the extra 'lightning'")

from pyro_implicit import SingularValueELBO
from tests.training.lightning.problem import OBJECTIVES
from tests.training.lightning.test_resume import assert_same, checkpoint, run


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:implicit site")
@pytest.mark.parametrize("step", [3, 5])
def test_the_warm_start_is_saved(monkeypatch, tmp_path, step):
    # two latents: without iterations the search stays where it began
    monkeypatch.setitem(OBJECTIVES, "warm", partial(SingularValueELBO, 2, num_iterations=0))
    whole = run(tmp_path / "whole", "warm")
    saved = checkpoint(tmp_path / "whole", step)
    state = torch.load(saved, weights_only=True)["pyro_implicit"]["objective_state"]
    # of one draw at a time: objectives see the draws in front
    assert [tuple(vector.shape) for vector in state["vectors"]] == [(1, 2)]
    assert_same(run(tmp_path / "again", "warm", saved), whole)
