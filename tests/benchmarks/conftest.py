"""A folder of made-up data sets in the form of the real ones."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import numpy as np
import pytest


@pytest.fixture(scope="session")
def small_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All that the short runs read but the reference posteriors."""
    root = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    (root / "uci").mkdir()
    for name, columns in (("boston", 13), ("energy", 8)):
        _regression(root / "uci" / f"{name}.npz", columns, rng)
    arrays = {}
    for part, size in (("train", 20), ("test", 4)):
        arrays[f"x_{part}"] = rng.integers(0, 256, (size, 28, 28), dtype=np.uint8)
        arrays[f"y_{part}"] = rng.integers(0, 10, size, dtype=np.uint8)
    np.savez(root / "mnist.npz", **arrays)
    for name in ("kmnist", "fashion_mnist", "notmnist"):
        images = rng.integers(0, 256, (4, 28, 28), dtype=np.uint8)
        np.savez(root / f"{name}_test.npz", x=images)
    _pictures(root / "cifar10_jpeg.npz", [0] * 20 + [1] * 6, rng)
    _pictures(root / "cifar100_test_jpeg.npz", [1] * 6, rng)
    rows = [f"{'C' * (1 + i % 5)}{'O' * (i % 3)}N,{0.1 * i:.1f}" for i in range(40)]
    with gzip.open(root / "cep.csv.gz", "wt") as file:
        file.write("smiles,PCE\n" + "\n".join(rows) + "\n")
    year = np.arange(391) + 1610.5
    missing = np.zeros(391, dtype=bool)
    for start in (16, 92, 166, 242, 316):
        missing[start : start + 20] = True
    series = 1365 + np.sin(year / 15)
    np.savez(root / "solar_tsi.npz", year=year, tsi_cycle_bkgrnd=series, test_mask_5x20=missing)
    months = 10 + 5 * np.sin(np.arange(150) * np.pi / 6) + rng.normal(size=150)
    np.savez(root / "cet_monthly.npz", temp=months, mask_1723_1970=np.ones(150, dtype=bool))
    return root


def _pictures(path: Path, split: list[int], rng: np.random.Generator) -> None:
    """Photographs of noise, compressed."""
    image = pytest.importorskip("PIL.Image")
    parts = []
    for _ in split:
        file = io.BytesIO()
        pixels = rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)
        image.fromarray(pixels).save(file, "JPEG", quality=95)
        parts.append(file.getvalue())
    np.savez(
        path,
        blob=np.frombuffer(b"".join(parts), dtype=np.uint8),
        offsets=np.cumsum([0, *map(len, parts)]),
        labels=rng.integers(0, 10, len(split), dtype=np.uint8),
        split=np.array(split, dtype=np.uint8),
    )


def _regression(path: Path, columns: int, rng: np.random.Generator) -> None:
    x = rng.normal(size=(60, columns)).astype(np.float32)
    rows = np.arange(60, dtype=np.int32)
    np.savez(
        path,
        X=x,
        y=(100 + 10 * x[:, 0] + rng.normal(size=60)).astype(np.float32),
        train_idx=np.stack([rows[:50], rows[10:]]),
        test_idx=np.stack([rows[50:], rows[:10]]),
    )
