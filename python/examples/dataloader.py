"""A data loader over many small files: a batch is one call, and the next one is read meanwhile.

python python/examples/dataloader.py [DEVICE]
"""

import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

import sidecore

FILES, BATCH, BYTES = 2_000, 100, 4_096


def make(folder: Path) -> list[Path]:
    """Samples that say who they are: 16-bit numbers that begin with the sample's own."""
    paths = [folder / f"{n:06}.bin" for n in range(FILES)]
    for n, path in enumerate(paths):
        path.write_bytes((np.arange(BYTES // 2) + n).astype(np.uint16).tobytes())
    return paths


def batches(paths: list[Path], device: str):
    """Shuffled batches of byte tensors; reading releases the GIL, so one thread ahead is enough."""
    order = np.random.default_rng(3).permutation(len(paths))
    groups = [order[at : at + BATCH] for at in range(0, len(order), BATCH)]

    def read(group):
        return group, sidecore.read_files([paths[n] for n in group], device=device)

    with ThreadPoolExecutor(1) as ahead:
        pending = ahead.submit(read, groups[0])
        for group in groups[1:]:
            done, pending = pending, ahead.submit(read, group)
            yield done.result()
        yield pending.result()


def first_number(sample) -> int:
    """The number that a sample begins with."""
    head = sample[:2].cpu().numpy() if hasattr(sample, "cpu") else sample[:2]
    return int(np.asarray(head).view(np.uint16)[0])


def main() -> None:
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    with tempfile.TemporaryDirectory() as folder:
        paths = make(Path(folder))
        begin, seen = time.perf_counter(), 0
        for group, samples in batches(paths, device):
            assert [first_number(sample) for sample in samples] == list(group)
            seen += len(samples)
        seconds = time.perf_counter() - begin
    assert seen == FILES
    routes = {name: r for name, r in sidecore.stats()["routes"].items() if r["bytes_read"]}
    print(f"{seen} samples in {seconds:.2f} s, {seen / seconds:.0f}/s; bytes by route:")
    for name, route in routes.items():
        print(f"  {name}: {route['bytes_read']} bytes in {route['ios']} I/Os")
    assert sum(r["bytes_read"] for r in routes.values()) == FILES * BYTES


if __name__ == "__main__":
    main()
