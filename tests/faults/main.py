"""Random faults, one launch each: what is said of them, how soon, and what is left behind."""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

import culprit
import host_kinds
import host_rounds
import interrupts
import ray_kinds
import ray_rounds
import ssh_rounds
from kinds import KINDS, draw
from rounds import AT_ONCE, Outcome, play


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./scripts/faults", description=__doc__)
    parser.add_argument("--rounds", type=int, default=len(KINDS), metavar="N")
    parser.add_argument("--seed", type=int, help="default: a new one, which is printed")
    parser.add_argument("--round", type=int, metavar="I", help="only this round of the seed")
    parser.add_argument(
        "--at-once", type=int, default=AT_ONCE, metavar="M",
        help="rounds that run at the same time (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--culprit", type=int, metavar="N",
        help="instead: N times each, 1 of 8 fails amid collectives of torch and JAX",
    )  # fmt: skip
    parser.add_argument(
        "--interrupts", type=int, metavar="N",
        help="instead: N launches that a signal interrupts at a random moment",
    )  # fmt: skip
    parser.add_argument(
        "--hosts", type=int, metavar="N",
        help="instead: N rounds over two hosts, which are namespaces; needs to be root",
    )  # fmt: skip
    parser.add_argument(
        "--ray", type=int, metavar="N",
        help="instead: N rounds over two hosts of a Ray cluster; needs to be root",
    )  # fmt: skip
    parser.add_argument(
        "--ssh", type=int, metavar="N",
        help="instead: N rounds over two hosts of ssh; root, and ./scripts/test --ssh before",
    )  # fmt: skip
    return parser.parse_args()


def main() -> int:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a script's background
    options = arguments()
    seed = random.randrange(100_000) if options.seed is None else options.seed
    numbers = range(options.rounds) if options.round is None else [options.round]
    print(f"seed {seed}", flush=True)
    if options.culprit:
        return culprits(options.culprit, seed)
    if options.interrupts:
        return interrupts.main(options.interrupts, seed, options.round)
    if options.hosts:
        numbers = range(options.hosts) if options.round is None else [options.round]
        return over_hosts([host_kinds.draw(seed, number) for number in numbers])
    if options.ray:
        numbers = range(options.ray) if options.round is None else [options.round]
        return over_ray([ray_kinds.draw(seed, number) for number in numbers])
    if options.ssh:
        numbers = range(options.ssh) if options.round is None else [options.round]
        return over_ssh([ssh_rounds.draw(seed, number) for number in numbers])
    began, outcomes = time.monotonic(), []
    with ThreadPoolExecutor(options.at_once) as pool:
        rounds = [draw(seed, number, root=os.geteuid() == 0) for number in numbers]
        for done in as_completed([pool.submit(play, round) for round in rounds]):
            outcomes.append(done.result())
            print(outcomes[-1], flush=True)
    return summary(seed, outcomes, time.monotonic() - began)


def culprits(count: int, seed: int) -> int:
    missed = 0
    for framework, how in culprit.CASES:
        good = 0
        for line in culprit.lines(framework, how, count, seed):
            if line:
                print(line, flush=True)
            good += line.startswith("ok ")
        print(f"=== {framework} {how}: the culprit was named in {good} of {count} runs ===")
        missed += count - good
    return 1 if missed else 0


def over_hosts(rounds: list[host_kinds.HostRound]) -> int:
    began, missed = time.monotonic(), []
    with ThreadPoolExecutor(host_rounds.HOSTS_AT_ONCE) as pool:
        for done in as_completed([pool.submit(host_rounds.play, round) for round in rounds]):
            outcome = done.result()
            print(outcome, flush=True)
            missed += [outcome.round] if outcome.misses else []
    return closing("hosts", missed, len(rounds), began)


def over_ray(rounds: list[ray_kinds.RayRound]) -> int:
    began = time.monotonic()
    with ray_rounds.rounds_on_ray() as players:
        return played("ray", began, map(players.play, rounds))


def over_ssh(rounds: list[ssh_rounds.SshRound]) -> int:
    began = time.monotonic()
    with ssh_rounds.rounds_on_ssh() as players:
        return played("ssh", began, map(players.play, rounds))


def played(name: str, began: float, outcomes: Iterable[ray_rounds.RayOutcome]) -> int:
    """Print how each round goes, and the times of all; the exit status."""
    found = []
    for outcome in outcomes:
        found.append(outcome)
        print(outcome, flush=True)
    for line in ray_rounds.times(found):
        print(line)
    missed = [outcome.round for outcome in found if outcome.misses]
    return closing(name, missed, len(found), began)


def closing(
    name: str,
    missed: Sequence[host_kinds.HostRound | ray_kinds.RayRound],
    count: int,
    began: float,
) -> int:
    """Print which rounds were missed, and how to repeat them; the exit status."""
    for each in missed:
        again = f"./scripts/faults --{name} 1 --seed {each.seed} --round {each.number}"
        print(f"missed: {each}; again: {again}")
    failed = f"{len(missed)} failed, " if missed else ""
    good = count - len(missed)
    print(f"=== {name}: {failed}{good} passed in {time.monotonic() - began:.1f}s ===")
    return 1 if missed else 0


def summary(seed: int, outcomes: list[Outcome], seconds: float) -> int:
    timed = [outcome for outcome in outcomes if outcome.seconds is not None]
    if timed:
        slowest = max(timed, key=lambda outcome: outcome.seconds or 0)
        print(f"slowest verdict: {slowest.seconds:.2f} s, {slowest.round}")
    missed = [outcome for outcome in outcomes if outcome.misses]
    for outcome in missed:
        number = outcome.round.number
        print(f"missed: {outcome.round}; again: ./scripts/faults --seed {seed} --round {number}")
    failed = f"{len(missed)} failed, " if missed else ""
    print(f"=== {failed}{len(outcomes) - len(missed)} passed (seed {seed}) in {seconds:.1f}s ===")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
