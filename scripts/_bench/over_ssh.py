"""``--ssh``: hosts by ssh beside torchrunx, on machines that are namespaces; needs to be root."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import peers
from report import shown
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).with_name("work_ssh.py")
SYSTEMS = ("xmp", "torchrunx")
LAUNCHES = 4
"""Of one program: the first one, and those for which the agents of xmp wait."""

sys.path.insert(0, str(ROOT))
from tests.support.ssh_hosts import SshHosts, hosts_on_network  # noqa: E402 - of the checkout


def measure(rounds: int) -> dict[str, list[list[float]]]:
    """Return the seconds of each launch of each program, by system; they take turns."""
    python = peers.prepare()
    taken: dict[str, list[list[float]]] = {system: [] for system in SYSTEMS}
    with tempfile.TemporaryDirectory() as folder, hosts_on_network(Path(folder), 3) as hosts:
        for _ in range(rounds):
            for system in SYSTEMS:
                taken[system].append(_round(hosts, python, system))
    return taken


def _round(hosts: SshHosts, python: str, system: str) -> list[float]:
    driver, *others = hosts.hosts
    words = (system, str(hosts.folder / "ssh-config"), str(LAUNCHES))
    names = [host.name for host in others]
    command = driver.command(python, str(PROGRAM), *words, *names, folder=hosts.folder)
    env = {**os.environ, **hosts.env}
    done = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True)
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found


def show(console: Console, taken: dict[str, list[list[float]]]) -> None:
    """Print the medians, and how many times xmp's the other's are."""
    table = Table(title="4 replicas on 2 hosts by ssh, call to last first gloo all-reduce")
    for heading in ("launch", *SYSTEMS, "ratio"):
        table.add_column(heading, justify="right")
    for name, part in (("first", slice(0, 1)), ("later", slice(1, None))):
        found = [
            median(each for launches in taken[system] for each in launches[part])
            for system in SYSTEMS
        ]
        ratio = f"{found[1] / found[0]:.1f}×"
        table.add_row(name, *(shown(each, "s") for each in found), ratio)
    console.print(table)
