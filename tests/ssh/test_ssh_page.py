"""The programs of docs/guide/ssh.md, on two hosts with the names that the page gives them."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.ssh_hosts import UNPACKED, SshHosts, hosts_on_network

pytestmark = [pytest.mark.ssh, pytest.mark.netns, pytest.mark.root]

PAGE = (Path(__file__).parents[2] / "docs/guide/ssh.md").read_text()
PROGRAMS = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.DOTALL))
PRINTED = {
    "first.py": "[(0, 12.0), (0, 12.0), (1, 12.0), (1, 12.0)]\n",
    "sweep.py": "[('/tmp', 'digits'), ('/tmp', 'digits')]\n",
}
IN_AN_ALLOCATION = ["nodes.py"]
"""tests/slurm runs it."""


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    with hosts_on_network(tmp_path_factory.mktemp("ssh")) as made:
        made.configure("Host a\n  HostName h0\nHost b\n  HostName h1\n")
        yield made


@pytest.fixture
def nothing_left(clean_environment: None) -> None:
    """What is left of launches is looked for on the hosts."""


@pytest.mark.parametrize("name", sorted(PRINTED))
def test_the_programs_of_the_page(hosts: SshHosts, tmp_path: Path, name: str) -> None:
    assert sorted(PROGRAMS) == sorted([*PRINTED, *IN_AN_ALLOCATION])
    assert len(PROGRAMS) == PAGE.count("```python")
    assert all(f"```text\n{shown}```" in PAGE for shown in PRINTED.values())
    (tmp_path / name).write_text(PROGRAMS[name])
    own = tmp_path / "ssh"  # its configuration, for a program that gives no words for ssh
    own.write_text(f'#!/bin/sh\nexec {UNPACKED}/usr/bin/ssh {" ".join(hosts.words)} "$@"\n')
    own.chmod(0o755)
    command = hosts.hosts[0].command(sys.executable, name, folder=tmp_path)
    env = {**hosts.env, "PATH": f"{tmp_path}:{hosts.env['PATH']}"}
    started = hosts.stage.start_command(*command, env=env, stdout=-1, stderr=-1)
    done = hosts.stage.outcome(started, 90)
    assert (done.code, done.out) == (0, PRINTED[name]), done
    assert not hosts.left(2.0)
