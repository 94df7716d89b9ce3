#!/usr/bin/env python3
"""The Python package against what people use today: interleaved repeats, one process, one table.

    python benches/python_peers.py --out RESULTS.json [--gib 8] [--folder /dev/shm] [--rows a,b]

Each peer is used where it can be imported; what cannot be is NOT MEASURED. Every timed load is
checked: right after it returns, with no synchronise, a kernel on another non-blocking stream sums
each tensor; before it, the file was rewritten in place with a new generation. Without a GPU the
same rows run into host memory. Seconds of CPU are those of this process, all threads.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import threading
import time
from pathlib import Path

import numpy as np
import torch

import sidecore

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
MIB = 1 << 20


def importable(name: str):
    try:
        return __import__(name, fromlist=["x"])
    except Exception as error:  # a peer's own failure is its row's reason
        print(f"{name}: {type(error).__name__} {error}"[:200])
        return None


class Bench:
    """Runs contestants in turn, and keeps what each needed."""

    def __init__(self, options) -> None:
        self.options = options
        self.rows: list[dict] = []
        self.wanted = set(options.rows.split(",")) if options.rows else None
        self.began = time.perf_counter()

    def wants(self, row: str) -> bool:
        left = self.options.seconds - (time.perf_counter() - self.began)
        if self.wanted is not None and row not in self.wanted:
            return False
        if left < 0:
            print(f"{row}: NOT MEASURED, the time is up")
            self.rows.append({"row": row, "verdict": "NOT MEASURED", "why": "time"})
        return left >= 0

    def measure(self, row: str, nbytes: int, contestants: dict, repeats: dict | int = 5) -> dict:
        """``contestants``: name to a function that may return the bytes or items it did instead."""
        taken: dict[str, list] = {name: [] for name in contestants}
        most = repeats if isinstance(repeats, int) else max(repeats.values())
        for turn in range(most):
            for name, run in contestants.items():
                if turn >= (repeats if isinstance(repeats, int) else repeats.get(name, most)):
                    continue
                try:
                    begin, cpu = time.perf_counter(), time.process_time()
                    check = run(turn)
                    seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
                    done = nbytes
                    if callable(check):
                        done = check() or nbytes
                    taken[name].append((seconds, cpu, done))
                except Exception as error:
                    print(f"  {row} {name}: {type(error).__name__}: {error}"[:300])
                    break
        result = {}
        for name, runs in taken.items():
            if not runs:
                continue
            rates = [done / seconds for seconds, _, done in runs]
            result[name] = {
                "rate": statistics.median(rates),
                "seconds": [r[0] for r in runs],
                "cpu_seconds": statistics.median(r[1] for r in runs),
                "work": runs[0][2],
            }
            one = result[name]
            print(
                f"  {row:22} {name:26} {one['rate'] / 1e9:8.3f} G/s  cpu {one['cpu_seconds']:.2f} s"
                f"  of {len(runs)}: {', '.join(f'{r[0]:.3f}' for r in runs)}"
            )
        self.rows.append({"row": row, "results": result})
        return result

    def judge(self, what: str, ours: float | None, other: float | None, least: float) -> None:
        """PASS where ``ours`` is at least ``least`` times ``other``."""
        if not ours or not other or not GPU:
            # Into host memory the ratios are others: a mapped file is loaded without being read.
            verdict, ratio = "NOT MEASURED", ours / other if ours and other else None
        else:
            ratio = ours / other
            verdict = "PASS" if ratio >= least else "FAIL"
        shown = "-" if ratio is None else f"{ratio:.2f}"
        print(f"{verdict:12} {what}: {shown} (at least {least})")
        self.rows.append({"what": what, "verdict": verdict, "ratio": ratio, "least": least})

    def at_most(self, what: str, value: float, most: float) -> None:
        verdict = "PASS" if value <= most else "FAIL"
        print(f"{verdict:12} {what}: {value:.4g} (at most {most:.4g})")
        self.rows.append({"what": what, "verdict": verdict, "value": value, "most": most})


def rate(results: dict, name: str) -> float | None:
    return results.get(name, {}).get("rate")


def best(results: dict, prefix: str) -> float | None:
    return max((r["rate"] for n, r in results.items() if n.startswith(prefix)), default=None)


class Model:
    """A safetensors file of many tensors, whose sums are known, in generations."""

    TENSORS = 272

    def __init__(self, path: Path, nbytes: int) -> None:
        self.path = path
        each = nbytes // 256 // 4096 * 4096
        tensors = {}
        for n in range(self.TENSORS):
            # 255 equal ones, and small ones as biases and norms are.
            words = each // 8 if n < 255 else 512 + n
            generator = torch.Generator(device=DEVICE).manual_seed(n)
            tensors[f"layers.{n}.weight"] = torch.randint(
                -(1 << 62), 1 << 62, (words,), dtype=torch.int64, device=DEVICE, generator=generator
            )
        self.sums = {name: int(t.sum()) - int(t[0]) for name, t in tensors.items()}
        sidecore.save_safetensors(tensors, path)
        self.tensors = tensors
        self.nbytes = sum(t.numel() * 8 for t in tensors.values())
        handle = sidecore._sidecore.Engine(None).open(str(path), "r")
        entries, _ = sidecore._sidecore.read_header(handle)
        self.offsets = {name: offset for name, _, _, offset, _ in entries}
        self.generation = 0

    def next_generation(self) -> None:
        self.generation += 1
        fd = os.open(self.path, os.O_RDWR)
        for n, offset in enumerate(self.offsets.values()):
            word = self.generation * 1_000_003 + n
            os.pwrite(fd, word.to_bytes(8, "little"), offset)
        os.close(fd)

    def check(self, loaded: dict) -> None:
        """Sums on another stream, at once: whatever has not arrived is wrong here."""
        if GPU:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                sums = torch.stack([loaded[name].sum() for name in self.offsets])
            stream.synchronize()
        else:
            sums = torch.stack([loaded[name].sum() for name in self.offsets])
        wrap = 1 << 64
        for n, (name, got) in enumerate(zip(self.offsets, sums.tolist(), strict=True)):
            expected = self.sums[name] + self.generation * 1_000_003 + n
            assert (got - expected) % wrap == 0, f"{name} of generation {self.generation}"


def ceiling() -> float | None:
    """Pinned host memory to the device, by the copy engine."""
    if not GPU:
        return None
    host = torch.empty(512 * MIB, dtype=torch.uint8, pin_memory=True)
    device = torch.empty_like(host, device=DEVICE)
    rates = []
    for _ in range(5):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(4):
            device.copy_(host, non_blocking=True)
        torch.cuda.synchronize()
        rates.append(4 * host.numel() / (time.perf_counter() - begin))
    print(f"ceiling: {max(rates) / 1e9:.1f} GB/s pinned host to device")
    return max(rates)


def raw_reads(bench: Bench, model: Model, roof: float | None, kvikio) -> None:
    """The whole file into one device buffer."""
    nbytes = os.path.getsize(model.path)
    target = torch.empty(nbytes, dtype=torch.uint8, device=DEVICE)

    def ours(threads):
        # One engine for each, so that none pays for threads and pinned memory in its time.
        engine = sidecore._sidecore.Engine(0 if GPU else None, threads=threads)

        def run():
            handle = engine.open(str(model.path), "r")
            asked = (handle, 0, target.data_ptr(), nbytes, GPU, target)
            assert engine.run(asked, False) == nbytes

        return run

    def theirs(threads):
        def run():
            with kvikio.CuFile(str(model.path), "r") as file:
                assert file.pread(target).get() == nbytes

        def prepared():
            kvikio.defaults.set({"num_threads": threads, "task_size": 4 * MIB})
            return run

        return prepared

    def prepared_by(run):
        return lambda: run

    runs = {f"sidecore {n}": prepared_by(ours(n)) for n in (8, 12, 16)}
    runs["sidecore"] = prepared_by(ours(None))
    if kvikio is not None and GPU:
        runs |= {f"kvikio {n}": theirs(n) for n in (1, 4, 8, 16)}
    taken: dict[str, list] = {name: [] for name in runs}
    for turn in range(bench.options.repeats + 1):
        for name, prepared in runs.items():
            run = prepared()
            begin, cpu = time.perf_counter(), time.process_time()
            run()
            if turn:  # the first one warms up
                taken[name].append((time.perf_counter() - begin, time.process_time() - cpu))
    results = {}
    for name, runs in taken.items():
        seconds = statistics.median(r[0] for r in runs)
        cpu = statistics.median(r[1] for r in runs)
        results[name] = {"rate": nbytes / seconds, "seconds": [r[0] for r in runs], "cpu": cpu}
        print(f"  read {name:18} {nbytes / seconds / 1e9:8.2f} GB/s  cpu {cpu:.2f} s")
    bench.rows.append({"row": "read", "results": results})
    bench.judge("8 GiB, 8 threads, of the ceiling", rate(results, "sidecore 8"), roof, 0.90)
    bench.judge("8 GiB, 12 threads, of the ceiling", rate(results, "sidecore 12"), roof, 0.93)
    top = max(
        (n for n in results if n.startswith("kvikio")),
        default=None,
        key=lambda n: results[n]["rate"],
    )
    least = 1.1 if str(model.path).startswith("/dev/shm") else 1.05
    bench.judge(
        "8 GiB, against KvikIO's best", best(results, "sidecore"), rate(results, top or ""), least
    )
    if top:
        bench.at_most(
            "CPU seconds of ours (8 threads), of KvikIO's at its best",
            results["sidecore 8"]["cpu"] / results[top]["cpu"],
            0.6,
        )


def loads(bench: Bench, model: Model, safetensors, fast) -> None:
    def ours(_turn):
        model.next_generation()
        begin = time.perf_counter()
        loaded = sidecore.load_safetensors(model.path, device=DEVICE, framework="torch")
        ours.seconds.append(time.perf_counter() - begin)
        model.check(loaded)

    def theirs(_turn):
        model.next_generation()
        begin = time.perf_counter()
        loaded = safetensors.load_file(str(model.path), device=DEVICE)
        if GPU:
            torch.cuda.synchronize()
        theirs.seconds.append(time.perf_counter() - begin)
        model.check(loaded)

    def faster(_turn):
        model.next_generation()
        begin = time.perf_counter()
        loader = fast.SafeTensorsFileLoader(
            fast.SingleGroup(), torch.device("cuda:0"), nogds=True, max_threads=16
        )
        loader.add_filenames({0: [str(model.path)]})
        buffer = loader.copy_files_to_device()
        loaded = {key: buffer.get_tensor(key) for key in buffer.key_to_rank_lidx}
        torch.cuda.synchronize()
        faster.seconds.append(time.perf_counter() - begin)
        model.check(loaded)
        buffer.close()
        loader.close()

    contestants = {"sidecore": ours}
    if safetensors is not None:
        contestants["safetensors"] = theirs
    if fast is not None and GPU:
        contestants["fastsafetensors"] = faster
    results = timed_inside(bench, "load_safetensors", model.nbytes, contestants, 3)
    shm = str(model.path).startswith("/dev/shm")
    bench.judge(
        "load_safetensors against load_file",
        rate(results, "sidecore"),
        rate(results, "safetensors"),
        10 if shm else 8,
    )
    bench.judge(
        "load_safetensors against fastsafetensors",
        rate(results, "sidecore"),
        rate(results, "fastsafetensors"),
        1.8,
    )


def timed_inside(bench: Bench, row: str, nbytes: int, contestants: dict, slow: int) -> dict:
    """Repeats whose preparation and checks are outside the time, which each keeps itself.

    Peers are repeated ``slow`` times after the first, which warms up.
    """
    for run in contestants.values():
        run.seconds = []
    cpu: dict[str, list] = {name: [] for name in contestants}
    for turn in range(bench.options.repeats + 1):
        for name, run in list(contestants.items()):
            if not name.startswith("sidecore") and turn > slow:
                continue
            begin = time.process_time()
            try:
                run(turn)
            except Exception as error:
                print(f"  {row} {name}: {type(error).__name__}: {error}"[:300])
                del contestants[name]
                continue
            cpu[name].append(time.process_time() - begin)
    results = {}
    for name, run in contestants.items():
        seconds = run.seconds[1:] or run.seconds  # the first one warms up
        results[name] = {
            "rate": nbytes / statistics.median(seconds),
            "seconds": run.seconds,
            "cpu_seconds_with_checks": statistics.median(cpu[name]),
        }
        print(
            f"  {row:18} {name:18} {results[name]['rate'] / 1e9:8.2f} GB/s"
            f"  {', '.join(f'{s:.3f}' for s in run.seconds)}"
        )
    bench.rows.append({"row": row, "results": results})
    return results


def memory_bounds(bench: Bench, model: Model) -> None:
    """What one load takes besides its payload, in a process of its own."""
    import subprocess

    code = """
import sys, torch, sidecore
if torch.cuda.is_available():
    torch.empty(1, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    free = torch.cuda.mem_get_info()[0]
status = lambda: open("/proc/self/status").read().split()
rss = lambda: int(status()[status().index("VmRSS:") + 1]) << 10
before = rss()
loaded = sidecore.load_safetensors(sys.argv[1], device=sys.argv[2], framework="torch")
payload = sum(t.numel() * t.element_size() for t in loaded.values())
device = free - torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else payload
hwm = int(status()[status().index("VmHWM:") + 1]) << 10
print(payload, device, hwm - before, sidecore.stats()["pinned_bytes_max"])
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(model.path), DEVICE],
        capture_output=True,
        text=True,
        timeout=120,
    )
    try:
        payload, device, growth, pinned = map(int, done.stdout.split())
    except ValueError:
        print(done.stderr[-500:])
        return
    if GPU:
        bench.at_most("device memory of a load, of its payload", device / payload, 1.02)
        bench.at_most("growth of resident memory beyond the pool, MiB", (growth - pinned) / MIB, 64)
    bench.at_most("most pinned memory, MiB", pinned / MIB, 512)


def checkpoint_loads(bench: Bench, model: Model, folder: Path) -> None:
    path = folder / "model.pt"
    for number, tensor in enumerate(model.tensors.values()):
        tensor[0] = number
    sidecore.torch_save(model.tensors, path)
    sums = {name: int(t.sum()) for name, t in model.tensors.items()}

    def verified(loaded: dict) -> None:
        stream = torch.cuda.Stream() if GPU else None
        with torch.cuda.stream(stream):
            got = torch.stack([t.sum() for t in loaded.values()])
        if stream is not None:
            stream.synchronize()
        assert dict(zip(loaded, got.tolist(), strict=True)) == sums

    def ours(_turn):
        begin = time.perf_counter()
        loaded = sidecore.torch_load(path, device=DEVICE)
        ours.seconds.append(time.perf_counter() - begin)
        verified(loaded)

    def theirs(_turn):
        begin = time.perf_counter()
        loaded = torch.load(path, map_location=DEVICE, **weights_only())
        if GPU:
            torch.cuda.synchronize()
        theirs.seconds.append(time.perf_counter() - begin)
        verified(loaded)

    results = timed_inside(
        bench, "torch_load", model.nbytes, {"sidecore": ours, "torch": theirs}, 1
    )
    bench.judge(
        "torch_load against torch.load", rate(results, "sidecore"), rate(results, "torch"), 10
    )
    path.unlink()


def checkpoint_saves(bench: Bench, model: Model, folder: Path) -> None:
    sums = {name: int(t.sum()) for name, t in model.tensors.items()}

    def save(by, turn: int, **options) -> float:
        target = folder / "saved.pt"
        begin = time.perf_counter()
        by(model.tensors, target, **options)
        seconds = time.perf_counter() - begin
        if turn == 0:
            loaded = sidecore.torch_load(target, device=DEVICE)
            assert {name: int(t.sum()) for name, t in loaded.items()} == sums
        target.unlink()
        return seconds

    def ours(turn):
        ours.seconds.append(save(sidecore.torch_save, turn))

    def without(turn):
        without.seconds.append(save(sidecore.torch_save, turn, crc32=False))

    def theirs(turn):
        theirs.seconds.append(save(torch.save, turn))

    contestants = {"sidecore": ours, "sidecore, no sums": without, "torch": theirs}
    results = timed_inside(bench, "torch_save", model.nbytes, contestants, 1)
    bench.judge(
        "torch_save against torch.save", rate(results, "sidecore"), rate(results, "torch"), 3
    )


def weights_only() -> dict:
    import inspect

    names = inspect.signature(torch.load).parameters
    return {"weights_only": True} if "weights_only" in names else {}


def rows(bench: Bench, model: Model, kvikio) -> None:
    """Random 4 KiB rows."""
    row = 4096
    count = os.path.getsize(model.path) // row
    many = min(1_000_000, 4 * count)
    indices = np.random.default_rng(1).integers(0, count, many)
    target = torch.empty(many * row, dtype=torch.uint8, device=DEVICE)
    file = sidecore.File(model.path)

    def expect(n: int) -> None:
        fd = os.open(model.path, os.O_RDONLY)
        for k in random.Random(n).sample(range(n), min(n, 200)):
            got = target[k * row : (k + 1) * row].cpu().numpy().tobytes()
            assert got == os.pread(fd, row, int(indices[k]) * row), k
        os.close(fd)

    def ours(_turn):
        sidecore.read_rows(file, indices, row, target)
        return lambda: expect(many) or many

    def kvik_one(_turn, few=10_000):
        with kvikio.CuFile(str(model.path), "r") as f:
            for k in range(few):
                f.pread(target[k * row : (k + 1) * row], row, int(indices[k]) * row).get()
        return lambda: few

    def kvik_futures(_turn, some=100_000):
        with kvikio.CuFile(str(model.path), "r") as f:
            futures = [
                f.pread(target[k * row : (k + 1) * row], row, int(indices[k]) * row)
                for k in range(some)
            ]
            for future in futures:
                future.get()
        return lambda: some

    some = min(250_000, many)

    def gather(mapped):
        taken = torch.from_numpy(mapped[indices[:some]])
        target[: some * row].view(some, row).copy_(taken)
        if GPU:
            torch.cuda.synchronize()
        return lambda: expect(some) or some

    def fresh(_turn):
        return gather(np.memmap(model.path, np.uint8, "r", shape=(count, row)))

    kept = np.memmap(model.path, np.uint8, "r", shape=(count, row))
    int(kept[:, 0].sum())  # every page is mapped from here on

    def warm(_turn):
        return gather(kept)

    contestants = {"sidecore": ours, "numpy memmap, fresh": fresh, "numpy memmap, warm": warm}
    if kvikio is not None and GPU:
        kvikio.defaults.set({"num_threads": 16, "task_size": 4 * MIB})
        contestants |= {"kvikio pread": kvik_one, "kvikio futures 16": kvik_futures}
    few = {"kvikio pread": 2, "kvikio futures 16": 2}
    results = bench.measure("rows", many, contestants, dict.fromkeys(contestants, 3) | few)
    mine = rate(results, "sidecore")
    bench.judge("rows against KvikIO's pread", mine, rate(results, "kvikio pread"), 50)
    bench.judge("rows against KvikIO's futures", mine, rate(results, "kvikio futures 16"), 2)
    bench.judge("rows against a fresh memmap", mine, rate(results, "numpy memmap, fresh"), 20)
    bench.judge("rows against a warm memmap", mine, rate(results, "numpy memmap, warm"), 8)


def small_files(bench: Bench, folder: Path, kvikio) -> None:
    count, size = bench.options.files, 16384
    place = folder / "small"
    place.mkdir()
    paths = [place / f"{n:06}" for n in range(count)]
    block = bytearray(np.random.default_rng(2).bytes(size))
    for n, path in enumerate(paths):
        block[:8] = n.to_bytes(8, "little")
        fd = os.open(path, os.O_CREAT | os.O_WRONLY)
        os.write(fd, block)
        os.close(fd)

    def ours(_turn):
        loaded = sidecore.read_files(paths, device=DEVICE, framework="torch")

        def check():
            heads = torch.stack([loaded[n][:8] for n in range(0, count, 97)]).cpu().numpy()
            numbers = heads.copy().view(np.int64)[:, 0]
            assert (numbers == np.arange(0, count, 97)).all()
            return count

        return check

    some = min(count, 5_000)
    target = torch.empty(count * size, dtype=torch.uint8, device=DEVICE)

    def theirs(_turn):
        for n in range(some):
            with kvikio.CuFile(str(paths[n]), "r") as f:
                f.read(target[n * size : (n + 1) * size])
        return lambda: some

    def plain(_turn):
        for n in range(some):
            with open(paths[n], "rb", buffering=0) as f:
                part = np.frombuffer(f.read(), np.uint8).copy()
            target[n * size : (n + 1) * size].copy_(torch.from_numpy(part))
        if GPU:
            torch.cuda.synchronize()
        return lambda: some

    contestants = {"sidecore": ours, "open, read, copy": plain}
    if kvikio is not None and GPU:
        contestants["kvikio"] = theirs
    results = bench.measure("files of 16 KiB", count, contestants, 3)
    peers = [rate(results, n) for n in results if n != "sidecore"]
    bench.judge(
        "files against the best peer's loop",
        rate(results, "sidecore"),
        max((p for p in peers if p), default=None),
        5,
    )
    for path in paths:
        path.unlink()
    place.rmdir()


def writes(bench: Bench, folder: Path) -> None:
    """Device memory to a file in the page cache, against write() from pinned memory."""
    nbytes, threads = 2 << 30 if GPU else 64 * MIB, 4
    source = torch.randint(0, 255, (nbytes,), dtype=torch.uint8, device=DEVICE)
    host = torch.empty(nbytes, dtype=torch.uint8, pin_memory=GPU)
    host.copy_(source)
    view = memoryview(host.numpy())
    path = folder / "written"
    path.write_bytes(b"")
    os.truncate(path, nbytes)
    fd = os.open(path, os.O_RDWR)

    def plain(_turn):
        part = nbytes // threads

        def work(n: int) -> None:
            for at in range(n * part, (n + 1) * part, 4 * MIB):
                os.pwrite(fd, view[at : min(at + 4 * MIB, (n + 1) * part)], at)

        pool = [threading.Thread(target=work, args=(n,)) for n in range(threads)]
        for thread in pool:
            thread.start()
        for thread in pool:
            thread.join()

    sidecore.configure(threads=threads)
    file = sidecore.File(path, "r+")

    def ours(_turn):
        file.write(source)

        def check():
            at = random.randrange(nbytes // 4096) * 4096
            assert os.pread(fd, 4096, at) == bytes(view[at : at + 4096])

        return check

    plain(0)
    results = bench.measure("writes", nbytes, {"sidecore": ours, "write(), pinned": plain}, 5)
    bench.judge(
        "device to page cache, of write() from pinned memory",
        rate(results, "sidecore"),
        rate(results, "write(), pinned"),
        0.8,
    )
    sidecore.configure()
    os.close(fd)
    path.unlink()


def streams(bench: Bench, model: Model) -> None:
    """Reads in the order of streams, behind kernels that spin."""
    if not GPU:
        return
    # What the first one would make, the driver may only make when the spin has ended.
    sidecore.prepare(DEVICE)
    size = 4 * MIB
    file = sidecore.File(model.path)
    expected = torch.from_numpy(np.fromfile(model.path, np.uint8, size)).cuda()
    torch.cuda._sleep(1000)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    torch.cuda._sleep(20_000_000)
    torch.cuda.synchronize()
    cycles = int(20_000_000 * 0.2 / (time.perf_counter() - begin))
    targets = [torch.zeros(size, dtype=torch.uint8, device=DEVICE) for _ in range(64)]
    pool = [torch.cuda.Stream() for _ in range(8)]
    file.read(targets[0])
    for kernel in (
        lambda: targets[0].sum(dtype=torch.int64),
        lambda: (targets[0] == expected).all(),
    ):
        kernel()  # loaded now: loading one waits for every stream
    targets[0].zero_()
    torch.cuda.synchronize()
    with torch.cuda.stream(pool[0]):
        torch.cuda._sleep(cycles)
        untouched = targets[0].sum(dtype=torch.int64)  # after the spin, before the read
        begin = time.perf_counter()
        future = file.read_async(targets[0], pool[0])
        returned = time.perf_counter() - begin
        arrived = (targets[0] == expected).all()
        done = torch.cuda.Event()
        done.record()
    done.synchronize()
    total = time.perf_counter() - begin
    assert int(untouched) == 0 and bool(arrived), "out of the stream's order"
    assert future.check_bytes_done() == size
    print(f"  the spin and the read took {total * 1e3:.0f} ms")
    assert total > 0.1, "the read did not wait for the spin"
    bench.at_most("read_async behind a spin: returns in ms", returned * 1e3, 1.0)

    def share(streams_used: int, count: int) -> float:
        for target in targets:
            target.zero_()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        futures = []
        for n in range(count):
            stream = pool[n % streams_used]
            with torch.cuda.stream(stream):
                torch.cuda._sleep(cycles // 20)
                futures.append(file.read_async(targets[n], stream))
        for future in futures:
            assert future.check_bytes_done() == size
        torch.cuda.synchronize()
        seconds = time.perf_counter() - begin
        for target in targets[:count]:
            assert bool((target == expected).all())
        return seconds

    one, all_of_them = share(1, 8), share(8, 64)
    bench.at_most("64 on 8 streams, of one stream's share", all_of_them / one, 1.5)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--folder", default="/dev/shm")
    parser.add_argument("--gib", type=float, default=8.0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--rows", default="")
    parser.add_argument("--seconds", type=float, default=200.0)
    options = parser.parse_args()
    bench = Bench(options)
    folder = Path(options.folder) / f"sidecore-bench-{os.getpid()}"
    folder.mkdir()
    kvikio = importable("kvikio")
    if kvikio is not None:
        importable("kvikio.defaults")
    try:
        roof = ceiling()
        model = Model(folder / "model.safetensors", int(options.gib * (1 << 30)))
        print(f"{model.nbytes / 1e9:.2f} GB made after {time.perf_counter() - bench.began:.1f} s")
        parts = {
            "load": lambda: loads(
                bench, model, importable("safetensors.torch"), importable("fastsafetensors")
            ),
            "streams": lambda: streams(bench, model),
            "torch_load": lambda: checkpoint_loads(bench, model, folder),
            "torch_save": lambda: checkpoint_saves(bench, model, folder),
            "rows": lambda: rows(bench, model, kvikio),
            "read": lambda: raw_reads(bench, model, roof, kvikio),
            "writes": lambda: writes(bench, folder),
            "files": lambda: small_files(bench, folder, kvikio),
            "memory": lambda: memory_bounds(bench, model),
        }
        for name, run in parts.items():
            if bench.wants(name):
                begin = time.perf_counter()
                try:
                    run()
                except Exception as error:
                    print(f"FAIL {name}: {type(error).__name__}: {error}"[:500])
                    bench.rows.append({"row": name, "verdict": "FAIL", "why": str(error)})
                print(f"-- {name}: {time.perf_counter() - begin:.1f} s", flush=True)
    finally:
        import shutil

        shutil.rmtree(folder, ignore_errors=True)
        gpu = torch.cuda.get_device_name(0) if GPU else "none"
        record = {
            "gpu": gpu,
            "torch": torch.__version__,
            "sidecore": sidecore.__version__,
            "folder": options.folder,
            "cpus": os.cpu_count(),
            "rows": bench.rows,
            "stats": sidecore.stats(),
        }
        Path(options.out).write_text(json.dumps(record, indent=1) + "\n")
    verdicts = [row["verdict"] for row in bench.rows if "verdict" in row]
    print({verdict: verdicts.count(verdict) for verdict in sorted(set(verdicts))})
    return 1 if "FAIL" in verdicts else 0


if __name__ == "__main__":
    sys.exit(main())
