"""A sharded model: made here, saved in three files with an index, loaded by one call, used.

python python/examples/sharded_model.py [DEVICE]
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np

import sidecore


def make(folder: Path, layers: int = 6, width: int = 64) -> dict:
    """Saves layers of random weights, two a shard, and the index that names them."""
    random = np.random.default_rng(7)
    weights = {
        f"layers.{n}.{kind}": random.standard_normal(shape).astype(np.float32) / width**0.5
        for n in range(layers)
        for kind, shape in [("weight", (width, width)), ("bias", (width,))]
    }
    weight_map = {}
    for shard in range(layers // 2):
        name = f"model-{shard + 1:05}-of-{layers // 2:05}.safetensors"
        part = {k: v for k, v in weights.items() if int(k.split(".")[1]) // 2 == shard}
        sidecore.save_safetensors(part, folder / name)
        weight_map |= dict.fromkeys(part, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return weights


def forward(weights: dict, x):
    """A few linear layers with a ramp between them; the same text for NumPy and torch."""
    for n in range(len(weights) // 2):
        x = x @ weights[f"layers.{n}.weight"] + weights[f"layers.{n}.bias"]
        x = x * (x > 0)
    return x


def main() -> None:
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    with tempfile.TemporaryDirectory() as folder:
        made = make(Path(folder))
        index = Path(folder) / "model.safetensors.index.json"
        print(sidecore.explain(Path(folder) / "model-00001-of-00003.safetensors", device))
        loaded = sidecore.load_safetensors(index, device=device)
    # The files are gone; the tensors are not.
    x = np.ones((2, 64), np.float32)
    expected = forward(made, x)
    first = next(iter(loaded.values()))
    if hasattr(first, "cpu"):
        import torch

        got = forward(loaded, torch.from_numpy(x).to(first.device)).cpu().numpy()
    else:
        got = forward(loaded, x)
    assert np.allclose(got, expected, rtol=1e-4, atol=1e-5), "the model computes something else"
    print(
        f"{len(loaded)} tensors of {type(first).__module__}, output {got.sum():.4f} as it was made"
    )


if __name__ == "__main__":
    main()
