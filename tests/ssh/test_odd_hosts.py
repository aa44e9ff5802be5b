"""Hosts as labs have them: jump hosts, banners, other shells, other folders; what is refused."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.driven_hosts import Driver
from tests.support.ssh_hosts import UNPACKED, SshHosts, hosts_on_network
from tests.support.waiting import until

pytestmark = [pytest.mark.ssh, pytest.mark.netns, pytest.mark.root]


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    with hosts_on_network(tmp_path_factory.mktemp("ssh"), 3) as made:
        yield made


@pytest.fixture
def hosts(network: SshHosts) -> Iterator[SshHosts]:
    network.whole()
    yield network
    assert not network.end_drivers()


@pytest.fixture
def nothing_left(clean_environment: None) -> None:
    """What is left of launches is looked for on the hosts."""


def names(hosts: SshHosts, *given: str, **options: Any) -> list[str]:
    """The host of each replica, one on each host."""
    driver = hosts.driver()
    driver.launch("hostname", options={"hosts": list(given), "nprocs": 1, **options})
    found: list[str] = driver.results()
    assert driver.finish() == 0
    return found


def refused(driver: Driver, *given: str, **options: Any) -> str:
    driver.launch("hostname", options={"hosts": list(given), "nprocs": 1, **options})
    return str(driver.error()["text"])


def test_a_host_behind_a_jump_host(hosts: SshHosts) -> None:
    own = f"ssh -F {hosts.folder / 'ssh-config'} -W %h:%p h1"
    hosts.configure(f"Host inner\n  HostName h2\n  ProxyCommand {own}\n")
    assert names(hosts, "h0", "inner") == ["h0", "h2"]
    log = (hosts.folder / "sshd-2").read_text()
    assert f"from {hosts.hosts[1].address} " in log, log


SHELLS = {"bash": "/bin/bash", "sh": "/bin/sh", "fish": "usr/bin/fish", "csh": "bin/bsd-csh"}


@pytest.mark.parametrize("shell", SHELLS)
def test_a_login_shell_that_prints(hosts: SshHosts, tmp_path: Path, shell: str) -> None:
    for profile in (".bashrc", ".cshrc", ".config/fish/config.fish"):
        (tmp_path / profile).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / profile).write_text("echo welcome | tee /dev/stderr\n")
    wrapper = tmp_path / shell
    libraries = ":".join(map(str, (UNPACKED / "usr/lib").glob("*-linux-gnu")))
    program = f'LD_LIBRARY_PATH={libraries} exec {UNPACKED / SHELLS[shell]} "$@"'
    wrapper.write_text(f"#!/bin/sh\n{program}\n")
    wrapper.chmod(0o755)
    hosts.account(tmp_path, str(wrapper))
    driver = hosts.driver(XMP_LOG="debug")
    driver.launch("hostname", options={"hosts": ["h0", "h1"], "nprocs": 1})
    assert driver.results() == ["h0", "h1"]
    assert driver.finish() == 0
    assert shell == "sh" or "printed before the stream: welcome" in driver.wrote()


def test_a_home_folder_that_is_not_there(hosts: SshHosts) -> None:
    hosts.account("/nonexistent")
    assert names(hosts, "h0", "h1") == ["h0", "h1"]


def test_shared_connections_of_ssh(hosts: SshHosts, tmp_path: Path) -> None:
    """That of another session is used, and that session goes on; none is made."""
    log, socket = hosts.folder / "sshd-1", f"/run/mux-{os.getpid()}"
    hosts.configure(f"Host h1\n  ControlMaster auto\n  ControlPath {socket}\n")
    for way in ("made", "used"):
        before = log.read_text().count("Accepted publickey")
        assert names(hosts, "h0", "h1") == ["h0", "h1"]
        assert log.read_text().count("Accepted publickey") == before + (way == "made")
        if way == "made":
            assert not Path(f"/proc/{hosts.hosts[0].first}/root{socket}").exists()
            own = hosts.hosts[0].command("ssh", *hosts.words, "h1", "sleep", "1000")
            session = hosts.stage.start_command(*own, env=hosts.env)
            place = Path(f"/proc/{hosts.hosts[0].first}/root{socket}")
            until(place.exists, 30, "the socket of the shared connection")
    assert session.poll() is None
    session.kill()


def test_the_folder_and_the_variables_of_replicas(hosts: SshHosts, tmp_path: Path) -> None:
    driver = hosts.driver(XMP_TEST_WORD="here", XMP_TEST_OTHER="here")
    both = {"hosts": ["h0", "h1"], "nprocs": 1}
    driver.launch("surroundings", options=both)
    own = str(hosts.folder)
    assert driver.results() == [["h0", own, None, None], ["h1", own, None, None]]
    (tmp_path / "there").mkdir()
    there = str(tmp_path / "there")
    driver.launch("surroundings", options={**both, "cwd": there, "copy_env": ["*_WORD"]})
    assert driver.results() == [["h0", there, "here", None], ["h1", there, "here", None]]
    assert driver.finish() == 0


def test_log_files_come_to_the_driver(hosts: SshHosts, tmp_path: Path) -> None:
    """Each host writes to a memory file system of its own."""
    driver = hosts.driver()
    logs = {"log_dir": "/run/logs", "gather_logs": True}
    driver.launch("says", options={"hosts": ["h0", "h1"], "nprocs": 1, **logs})
    driver.results()
    assert driver.finish() == 0
    names = hosts.hosts[0].command("sh", "-c", "cd /run/logs && cat *")
    found = hosts.stage.outcome(hosts.stage.start_command(*names, stdout=-1, stderr=-1), 30)
    assert found.out.splitlines() == ["says 0 on h0", "says 1 on h1"], found


def test_twenty_hosts(hosts: SshHosts) -> None:
    """All of them on one machine, at 127.0.0.2 and up."""
    places = [f"Host n{i}\n  HostName 127.0.0.{2 + i}\n  HostKeyAlias h0\n" for i in range(20)]
    hosts.configure("".join(places))
    assert names(hosts, *(f"n{i}" for i in range(20))) == ["h0"] * 20


def test_a_host_that_does_not_answer(hosts: SshHosts) -> None:
    hosts.hosts[1].cut()
    said = refused(hosts.driver(), "h0", "h1", start_timeout=3)
    assert "h1 did not answer within 3 s (start_timeout)" in said
    assert "Try it by hand: " in said
    assert said.endswith(f"-- h1 {sys.executable} -V [XMP-H08]"), said


def test_what_is_wrong_is_said_before_anything_runs(hosts: SshHosts, tmp_path: Path) -> None:
    driver = hosts.driver()
    said = refused(driver, "h0", "no-such-host")
    assert "no-such-host was not reached: ssh ended with exit code 255" in said
    assert "Could not resolve hostname" in said
    said = refused(driver, "h0", "h1", python="/no/such/python")
    assert "ssh ended with exit code 127: there is no such interpreter (python=)" in said
    assert "/no/such/python" in said
    said = refused(driver, "h0", "h1", cwd=str(tmp_path / "missing"))
    assert "2 of 2 hosts cannot take part" in said
    assert f"h1 has no folder {tmp_path / 'missing'} (No such file or directory)" in said
    said = refused(driver, "h0", "h1:2")
    assert "h1 was not reached: ssh ended with exit code 255" in said
    assert "Connection refused" in said
    driver.launch("hostname", options={"hosts": ["h0", "h1"], "nprocs": 1})
    assert driver.results() == ["h0", "h1"]


def test_what_the_home_folder_of_a_host_has(hosts: SshHosts, tmp_path: Path) -> None:
    """Modules of the names of Python's own, and a stream that ends with a lot of a banner."""
    for name in ("json", "base64", "os"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('of the home folder')\n")
    (tmp_path / ".bashrc").write_text("head -c 900000 /dev/zero\n")
    hosts.account(tmp_path)
    assert names(hosts, "h0", "h1") == ["h0", "h1"]
    (tmp_path / ".bashrc").write_text("cat /dev/zero\n")
    driver = hosts.driver()
    said = refused(driver, "h0", "h1")
    assert "sent what is no stream of xmp: more than 1048576 bytes before it" in said


def test_a_host_that_is_not_reached_beside_one_that_is_silent(hosts: SshHosts) -> None:
    hosts.hosts[1].cut()
    said = refused(hosts.driver(), "no-such-host", "h1")
    assert "Could not resolve hostname" in said
    assert "no-such-host was not reached" in said


def test_a_ctrl_c_while_hosts_are_awaited(hosts: SshHosts) -> None:
    hosts.hosts[1].cut()
    driver = hosts.driver()
    driver.launch("hostname", options={"hosts": ["h0", "h1"], "nprocs": 1})
    until(lambda: "waiting for h1 to answer (ssh)" in driver.wrote(), 60, driver.wrote)
    driver.signal(signal.SIGINT)
    assert driver.error()["type"] == "KeyboardInterrupt"
    driver.process.wait(30)
    assert not hosts.left()


def test_a_script_of_which_the_hosts_have_no_file(hosts: SshHosts, tmp_path: Path) -> None:
    """`xmp run` sends it as text."""
    script = "import os\nprint(os.environ['RANK'], os.uname().nodename)\n"
    (tmp_path / "train.py").write_text(script)
    words = (
        "--engine=ssh",
        "--hosts=h0,h1",
        "-n1",
        "--prefix=",
        f"--ssh-options=-F {hosts.folder}/ssh-config",
    )
    command = hosts.hosts[0].command(
        sys.executable, "-m", "xmp", "run", *words, "train.py", folder=tmp_path
    )
    started = hosts.stage.start_command(*command, env=hosts.env, stdout=-1, stderr=-1)
    done = hosts.stage.outcome(started, 90)
    assert (done.code, sorted(done.out.splitlines())) == (0, ["0 h0", "1 h1"]), done
    assert not hosts.left()
