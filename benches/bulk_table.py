#!/usr/bin/env python3
"""What bulk transfers reach on this machine, against ceilings and peers of the same run.

    benches/bulk_table.py --binary target/release/sidecore --out docs/bulk-MACHINE.json

Runs `sidecore bench bulk` and `bench rows` for each row of the table: all peers of a row in turns, medians
of their repeats. Prints PASS, FAIL or NOT MEASURED for each, with the figures that it follows from, and
writes everything that was measured. Peers that are not installed make rows NOT MEASURED.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent


class Bench:
    def __init__(self, args):
        self.args, self.rows, self.errors = args, [], []

    def run(self, form, peers, *options, seconds=60):
        """Runs peers in turns; the rows by the peers' texts."""
        command = [self.args.binary, "bench", form, "--json", "--gpu", self.args.gpu]
        command += ["--python", sys.executable, "--script", str(HERE / "bulk_peers.py")]
        for peer in peers:
            if peer.split(":")[0] in self.args.skip:
                continue
            command += ["--with", peer]
        try:
            done = subprocess.run(
                command + [str(option) for option in options],
                capture_output=True, text=True, timeout=seconds,
            )
            lines, errors = done.stdout.splitlines(), done.stderr
        except subprocess.TimeoutExpired:
            lines, errors = [], f"{' '.join(peers)}: longer than {seconds} s"
        rows = [json.loads(line) for line in lines if line.startswith("{")]
        self.rows += rows
        self.errors += [line for line in errors.splitlines() if line][:20]
        return {row["peer"]: row for row in rows if not row.get("not_measured") and row["repeats"]}


    def made(self, *options):
        """Rows of what is opened."""
        command = [self.args.binary, "bench", "bulk", "--json", "--gpu", self.args.gpu, *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        self.rows += rows
        self.errors += done.stderr.splitlines()[:20]
        return rows


def best(rows, start):
    found = [row for peer, row in rows.items() if peer.startswith(start)]
    return max(found, key=lambda row: row["bytes_per_s"], default=None)


def rate(row):
    return row["bytes_per_s"] / 1e9


class Table:
    def __init__(self):
        self.rows = []

    def ratio(self, what, least, mine, other, of="rate"):
        """A row: `of` of mine over that of the other one; least None for one that only is shown."""
        if mine is None or other is None:
            missing = "ours" if mine is None else "the peer"
            return self.add(what, least, None, f"{missing} was not measured", of == "cpu")
        if of == "rate":
            value = rate(mine) / rate(other)
            shown = f"{rate(mine):.2f} against {rate(other):.2f} GB/s ({mine['peer']}, {other['peer']})"
        elif of == "time":
            value = other["seconds"] / mine["seconds"]
            shown = f"{mine['seconds']:.4f} against {other['seconds']:.4f} s"
            shown += f" ({mine['peer']}, {other['peer']})"
        else:
            value = mine["cpu_seconds"] / other["cpu_seconds"]
            shown = f"{mine['cpu_seconds']:.2f} against {other['cpu_seconds']:.2f} CPU s"
            shown += f" ({mine['peer']}, {other['peer']})"
        self.add(what, least, value, shown, at_most=of == "cpu")

    def add(self, what, least, value, shown, at_most=False):
        if value is None:
            verdict = "NOT MEASURED"
        else:
            verdict = "PASS" if (value <= least if at_most else value >= least) else "FAIL"
        bound = f"{'<=' if at_most else '>='} {least:g}"
        self.rows.append(
            {"what": what, "bound": bound, "value": value, "verdict": verdict, "shown": shown}
        )

    def text(self):
        lines = ["| what | bound | value | verdict | from |", "| --- | --- | --- | --- | --- |"]
        for row in self.rows:
            value = "" if row["value"] is None else f"{row['value']:.3g}"
            lines.append(
                f"| {row['what']} | {row['bound']} | {value} | {row['verdict']} | {row['shown']} |"
            )
        return "\n".join(lines)


def read(bench, table, file, name, factor):
    """One large file, hot."""
    peers = ["ours:threads=8,check=0", "ours:threads=12,check=0", "plain:threads=8,check=0"]
    peers += ["plain:threads=12,check=0", "kvikio:threads=8", "kvikio:threads=16"]
    peers += ["cufile:threads=8", "cufile:threads=16", "ceiling:slot=64m,check=0"]
    rows = bench.run("bulk", peers, "--file", file, "--repeats", bench.args.repeats, seconds=90)
    eight, twelve = rows.get(peers[0]), rows.get(peers[1])
    ceiling, ours, kvikio = rows.get(peers[-1]), best(rows, "ours"), best(rows, "kvikio")
    table.ratio(f"{name}: 8 threads, of the pinned copy ceiling", 0.90, eight, ceiling)
    table.ratio(f"{name}: 12 threads, of the pinned copy ceiling", 0.93, twelve, ceiling)
    table.ratio(f"{name}: best, of KvikIO's best", factor, ours, kvikio)
    table.ratio(f"{name}: best, of libcufile's best", 1.0, ours, best(rows, "cufile"))
    table.ratio(f"{name}: CPU with 8 threads, of KvikIO's at its best", 0.6, eight, kvikio, "cpu")
    pinned = [row["pinned_bytes"] for row in (eight, twelve) if row]
    most = max(pinned, default=None)
    table.add(f"{name}: peak pinned MiB", 512, most and most / 2**20, f"{pinned} bytes", True)


def rows_of(bench, table, file):
    """Rows of 4 KiB at random."""
    peers = ["ours:threads=16,check=0", "plain:threads=16,check=0"]
    options = ["--file", file, "--count", bench.args.rows]
    rows = bench.run("rows", peers, *options, "--repeats", 9)
    name = f"{bench.args.rows} rows of 4 KiB"
    ours = rows.get(peers[0])
    table.ratio(f"{name}: of a plain loop with 16 threads", 1.0, ours, rows.get(peers[1]), "time")
    rows = bench.run("rows", [peers[0], "numpy", "numpy:warm=1"], *options, "--repeats", 1)
    ours = rows.get(peers[0])
    table.ratio(f"{name}: of a fresh memmap gather", 20, ours, rows.get("numpy"), "time")
    table.ratio(f"{name}: of a warm memmap gather", 8, ours, rows.get("numpy:warm=1"), "time")
    few = max(bench.args.rows // 10, 1)
    peers = ["ours:threads=16,check=0", "kvikio:threads=1", "kvikio:threads=16,futures=1"]
    rows = bench.run("rows", peers, "--file", file, "--count", few, "--repeats", 1)
    ours = rows.get(peers[0])
    table.ratio(f"{few} rows: of KvikIO's pread", 50, ours, rows.get(peers[1]), "time")
    table.ratio(f"{few} rows: of KvikIO's futures", 2, ours, rows.get(peers[2]), "time")


def files(bench, table, folder):
    """Many small files."""
    options = ["--work", "files", "--dir", folder, "--count", bench.args.files]
    peers = ["ours:threads=16,check=0", "ours:threads=8,check=0", "plain:threads=16,check=0"]
    rows = bench.run("bulk", peers, *options, "--repeats", 7)
    ours, name = best(rows, "ours"), f"{bench.args.files} files of 16 KiB"
    table.ratio(f"{name}: of a plain loop with 16 threads", 1.0, ours, rows.get(peers[2]), "time")
    rows = bench.run("bulk", [peers[0], "kvikio:threads=1", "numpy"], *options, "--repeats", 1)
    loops = [row for row in (rows.get("kvikio:threads=1"), rows.get("numpy")) if row]
    fastest = min(loops, key=lambda row: row["seconds"], default=None)
    ours = rows.get(peers[0])
    table.ratio(f"{name}: of a Python loop over the best peer", 5, ours, fastest, "time")


def write(bench, table, folder):
    """Device memory into a file in the page cache."""
    peers = ["ours:threads=4,check=0", "plain:threads=4,check=0"]
    rows = bench.run(
        "bulk", peers, "--work", "write", "--dir", folder, "--size", "2g", "--repeats", 3
    )
    ours, plain = (rows.get(peer) for peer in peers)
    table.ratio("device -> file in page cache: of a loop of write()", 0.8, ours, plain)


def opening(bench, table):
    """What is made before bytes move; what is lazy is shown apart."""
    rows = {row["what"]: row["seconds"] for row in bench.made("--opening")}
    for what, least in (("engine", 10e-3), ("file", 50e-6), ("buffer by its address", 100e-6)):
        value = rows.get(what)
        shown = "; ".join(f"{name}: {seconds * 1e6:.1f} us" for name, seconds in rows.items())
        table.add(f"opening: {what}, seconds", least, value, shown, at_most=True)


def fio(file):
    """The best rate of some direct reads by fio, as a row; none where there is no fio."""
    found = None
    for jobs in (1, 2):
        for block in ("1m", "4m"):
            size = os.path.getsize(file) // jobs
            command = ["fio", "--name=cold", f"--filename={file}", "--rw=read", f"--bs={block}"]
            command += ["--ioengine=io_uring", "--iodepth=16", "--direct=1", f"--numjobs={jobs}"]
            command += [f"--size={size}", f"--offset_increment={size}", "--readonly"]
            command += ["--group_reporting", "--output-format=json"]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=120)
                read = json.loads(done.stdout)["jobs"][0]["read"]
            except (OSError, ValueError, LookupError, subprocess.TimeoutExpired):
                continue
            row = {"peer": f"fio {block} x {jobs}", "bytes_per_s": read["bw_bytes"]}
            if found is None or row["bytes_per_s"] > found["bytes_per_s"]:
                found = row
    return found


def cold(bench, table, file):
    """One file that is not in the page cache."""
    peers = ["ours:check=0", "ours:threads=2,check=0"]
    rows = bench.run("bulk", peers, "--file", file, "--cold", "--repeats", 3, seconds=180)
    table.ratio("cold file: of fio's best direct reads", 0.95, best(rows, "ours"), fio(file))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", default="target/release/sidecore")
    parser.add_argument("--gpu", default="auto")
    parser.add_argument("--dir", default="/dev/shm", help="a tmpfs, or where the files shall be")
    parser.add_argument("--disk", help="a directory on a disk, for the same again")
    parser.add_argument("--gib", type=int, default=8)
    parser.add_argument("--disk-gib", type=int, default=4)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--skip", nargs="*", default=[], help="peers to leave out, by name")
    parser.add_argument("--out", default="bulk.json")
    args = parser.parse_args()
    bench, table = Bench(args), Table()

    def keep():
        """Writes what there is so far: a run that is ended early leaves it."""
        result = {"table": table.rows, "rows": bench.rows, "errors": bench.errors}
        pathlib.Path(args.out).write_text(json.dumps(result, indent=1) + "\n")
        sys.stdout.flush()

    opening(bench, table)
    write(bench, table, args.dir)
    files(bench, table, args.dir)
    keep()
    for folder, factor in ((args.dir, 1.1), (args.disk, 1.05)):
        if not folder:
            continue
        with tempfile.NamedTemporaryFile(dir=folder) as made:
            block = os.urandom(64 << 20)
            gib = args.gib if folder == args.dir else args.disk_gib
            for _ in range(gib << 4):
                made.write(block)
            made.flush()
            os.fsync(made.fileno())
            name = f"{gib} GiB file in {folder} -> device"
            read(bench, table, made.name, name, factor)
            if folder == args.dir:
                rows_of(bench, table, made.name)
            else:
                cold(bench, table, made.name)
            keep()
    print(table.text())
    for error in sorted(set(bench.errors)):
        print(error, file=sys.stderr)
    keep()
    return 0 if all(row["verdict"] != "FAIL" for row in table.rows) else 3


if __name__ == "__main__":
    sys.exit(main())
