"""The scripts about training at scale, in small."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyro
import pytest
import torch

pytest.importorskip("lightning", reason="needs the extra 'lightning'")

from benchmarks import bfloat16, compile, ddp, train_distributed

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.filterwarnings("ignore:The '.*' does not have many workers"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no"),
    pytest.mark.filterwarnings("ignore:GPU available but not used"),
    pytest.mark.filterwarnings("ignore:`isinstance\\(treespec, LeafSpec\\)` is deprecated"),
]
SMALL = ["--network", "perceptron", "--guide", "mmnn", "--batch-size", "8", "--quiet"]


def test_the_example_in_one_process():
    command = [*SMALL, "--accelerator", "cpu", "--devices", "1", "--num-train", "64"]
    one = train_distributed.main([*command, "--steps", "2"])
    assert one["processes"] == 1
    assert one["latents"] == 1210
    two = train_distributed.main([*command, "--steps", "2", "--spread", "particles"])
    assert two["loss"] == one["loss"]  # fixed seeds


@pytest.mark.slow
def test_the_example_in_two_processes():
    command = [sys.executable, "-m", "benchmarks.train_distributed", *SMALL]
    command += ["--accelerator", "cpu", "--devices", "2", "--num-train", "64", "--steps", "3"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert json.loads(line)["processes"] == 2


@pytest.mark.slow
def test_times_of_one_and_two_processes(capsys):
    rows = ddp.main([*SMALL, "--steps", "3", "--seeds", "0"])
    assert [row["processes"] for row in rows] == [1, 2]
    assert rows[0]["MB sent per step"] == 0
    assert rows[1]["MB sent per step"] == 4 * rows[1]["parameters"] / 1e6
    assert "seconds per step" in capsys.readouterr().out


def test_compile_without_generated_code(capsys):
    # torch.compile turns the validation of torch's distributions off, for good
    with pyro.settings.context(validate_distributions_torch=True):
        rows = compile.main([*SMALL, "--rounds", "2", "--backend", "eager"])
    torch._dynamo.reset()
    assert len(rows) == 2
    assert all(row["eager"] > 0 and row["compiled"] > 0 for row in rows)
    assert "compiling" in capsys.readouterr().out


@pytest.mark.slow
def test_bfloat16(data_root, capsys):
    if not (data_root / "mnist.npz").is_file():
        pytest.skip("no MNIST in the data folder")
    sizes = ["--num-train", "512", "--num-test", "64", "--epochs", "1", "--seeds", "0", "--quiet"]
    rows = bfloat16.main([*sizes, "--data-root", str(data_root)])
    assert [row["precision"] for row in rows] == ["32-true", "bf16-mixed"]
    assert all(row["steps"] == 2 and row["not finite"] == 0 for row in rows)
    assert "nll 0" in capsys.readouterr().out
