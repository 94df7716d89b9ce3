#!/usr/bin/env python3
"""Holds rows of benchmarks against goals: h200.py GOALS.toml COMMIT GPU ROWS.jsonl...

Each row is a JSON object with `row`, `gpu` and the fields that the goals name; where it has no `repeat`,
it is one. Rows whose `gpu` does not name GPU are refused. Prints a Markdown table; exits 1 where a goal is
missed or not measured.
"""

import json
import statistics
import sys
import tomllib


def read(files, gpu):
    rows, refused = {}, 0
    for file in files:
        with open(file) as lines:
            for line in filter(str.strip, lines):
                row = json.loads(line)
                if gpu not in row.get("gpu", ""):
                    refused += 1
                    continue
                rows.setdefault(row["row"], []).append(row)
    return rows, refused


def clean(row):
    """Whether all that the row did was checked and right."""
    return row.get("errors", 0) == 0 and row.get("ios_unverified", 0) == 0


def denominator(goal, rows):
    if "over_number" in goal:
        return goal["over_number"], True
    if "over_value" in goal:
        found = [row[goal["over_value"]] for row in rows.get(goal["over_row"], [])]
        return (statistics.median(found), True) if found else (0.0, True)
    found = [row for row in rows.get(goal["over_row"], []) if row.get("what") == goal["over_what"]]
    best = max((row["bytes_per_s"] for row in found), default=0.0)
    return best, best >= goal.get("void_below", 0.0)


def short(number):
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(number) >= size:
            return f"{number / size:.2f} {unit}"
    return f"{number:.2f}"


def judge(goal, rows):
    """Cells of the goal's line, and whether it is met (None: there is nothing to meet)."""
    aim = f">= {goal['at_least']}" if "at_least" in goal else f"<= {goal['at_most']}" if "at_most" in goal else "-"
    found = rows.get(goal["row"], [])
    under, counts = denominator(goal, rows)
    if not found or under == 0:
        return [goal["name"], aim, "", "", "", "", "", "NOT MEASURED"], False
    values = [row[goal["value"]] for row in found]
    ratios = [value / under for value in values]
    median = statistics.median(ratios)
    spread = (max(ratios) - min(ratios)) / median if median else 0.0
    met = median >= goal["at_least"] if "at_least" in goal else median <= goal["at_most"] if "at_most" in goal else None
    verdict = "as it comes" if met is None else "PASS" if met else "FAIL"
    if not all(clean(row) for row in found):
        verdict, met = "FAIL (not clean)", False
    elif not counts:
        verdict, met = "VOID (ceiling too low)", False
    cells = [goal["name"], aim, short(statistics.median(values)), short(under)]
    cells += [" ".join(f"{ratio:.3f}" for ratio in ratios), f"{median:.3f}", f"{spread * 100:.1f} %", verdict]
    return cells, met


def main():
    goals, commit, gpu, *files = sys.argv[1:]
    rows, refused = read(files, gpu)
    with open(goals, "rb") as file:
        goals = tomllib.load(file)["goal"]
    print("| what | goal | median | over | repeats | median | spread | verdict |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    missed = 0
    for goal in goals:
        cells, met = judge(goal, rows)
        missed += met is False
        print("| " + " | ".join(cells) + " |")
    steps = {row["step_ns"] for found in rows.values() for row in found if "step_ns" in row}
    print(f"\nCommit {commit}; GPU {gpu}; the GPU's clock steps by {sorted(steps)} ns; {refused} rows of other GPUs refused.")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
