"""The scripts about training at scale, in small."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("lightning", reason="needs the extra 'lightning'")

from benchmarks.cost import train_distributed

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.filterwarnings("ignore:The '.*' does not have many workers"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no"),
    pytest.mark.filterwarnings("ignore:GPU available but not used"),
    pytest.mark.filterwarnings("ignore:`isinstance\\(treespec, LeafSpec\\)` is deprecated"),
]
SMALL = ["--network", "perceptron", "--guide", "mmnn", "--batch-size", "8", "--quiet"]


@pytest.mark.long
def test_the_example_in_one_process():
    command = [*SMALL, "--accelerator", "cpu", "--devices", "1", "--num-train", "64"]
    one = train_distributed.main([*command, "--steps", "2"])
    assert one["processes"] == 1
    assert one["latents"] == 1210
    two = train_distributed.main([*command, "--steps", "2", "--spread", "particles"])
    assert two["loss"] == one["loss"]  # fixed seeds


@pytest.mark.slow
def test_the_example_in_two_processes():
    command = [sys.executable, "-m", "benchmarks.cost.train_distributed", *SMALL]
    command += ["--accelerator", "cpu", "--devices", "2", "--num-train", "64", "--steps", "3"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert json.loads(line)["processes"] == 2
