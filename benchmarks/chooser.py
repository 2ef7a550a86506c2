"""Measures whether the choice of an index type is the same on a busy machine as on a quiet machine.

    python benchmarks/chooser.py [--vectors 200000] [--dim 96] [--runs 10] [--busy 3] [--floor 0.95] [--sample 50000]

The chooser gets the synthetic vectors of benchmarks/index.py in all runs. There are `--runs` runs while `--busy` other
processes use the CPU, and `--runs` runs without them. Each run is a separate process, and busy and quiet runs
alternate. Each run prints a JSON line. Another line counts how often each factory string was chosen in both states. The
last line compares the median seconds of a choice on a quiet machine (`ours`) with the median seconds on a busy machine
(`reference`).
"""

import argparse
import multiprocessing
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from interleave import parse_options, report

from pipeline.compute import runtime

runtime.configure()

from index import make_pairs  # noqa: E402  after the runtime is configured

from pipeline.index.chooser import Requirements, choose  # noqa: E402
from pipeline.index.exact import Vectors  # noqa: E402

SPAWN = multiprocessing.get_context("spawn")


def spin() -> None:
    """Use the CPU until the process is killed."""
    while True:
        pass


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Run `count` processes, each of which keeps one core busy, until the context ends."""
    loops = [SPAWN.Process(target=spin, daemon=True) for _ in range(count)]
    for loop in loops:
        loop.start()
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.join()


def choose_once(vectors: int, dim: int, floor: float, sample: int) -> dict[str, object]:
    """Choose an index type for synthetic vectors, and return facts about the choice.

    The facts are the chosen `factory` string, the wall `seconds` of the choice, and the CPU seconds divided by the wall
    seconds (`cpu_over_wall`). `costs` has the cost of each factory string that was tried without a failure, times 1e9
    and divided by the number of vectors.
    """
    images, sentences = make_pairs(vectors, 1000, dim)
    wall = time.perf_counter()
    processor = time.process_time()
    asked = Requirements(floor, None, None, 1000, "auto", sample)
    rounds = choose(Vectors(images), sentences, "inner_product", asked, lambda items, what: items)
    trials = next(each.trials for each in rounds if each.finalists)
    wall = time.perf_counter() - wall
    processor = time.process_time() - processor
    costs = {trial.factory: round(1e9 * trial.cost / vectors, 3) for trial in trials if trial.failure is None}
    return {"factory": trials[0].factory, "seconds": wall, "cpu_over_wall": processor / wall, "costs": costs}


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, default in (("vectors", 200_000), ("dim", 96), ("runs", 10), ("busy", 3), ("sample", 50_000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--floor", type=float, default=0.95)
    options = parse_options(parser, globals(), vectors=3000, dim=16, sample=1000, runs=1, busy=1)
    runs = {"quiet": [], "busy": []}
    for number in range(options.runs):
        for state, loops in (("quiet", 0), ("busy", options.busy)):
            with busy_loops(loops), SPAWN.Pool(1) as pool:
                arguments = options.vectors, options.dim, options.floor, options.sample
                runs[state].append(pool.apply(choose_once, arguments))
            report({"name": f"run {number}, {state}", **runs[state][-1]})
    counts = {state: dict(Counter(run["factory"] for run in some)) for state, some in runs.items()}
    report({"name": "chosen factories", **counts})
    quiet, busy = ([run["seconds"] for run in some] for some in runs.values())
    report(
        {
            "name": "choice on a quiet machine, compared with a busy machine",
            "ours": statistics.median(quiet),
            "reference": statistics.median(busy),
            "ratio": statistics.median(b / a for a, b in zip(quiet, busy, strict=True)),
            "pairs": options.runs,
            "cpu_over_wall": statistics.median(run["cpu_over_wall"] for some in runs.values() for run in some),
        }
    )


if __name__ == "__main__":
    main()
