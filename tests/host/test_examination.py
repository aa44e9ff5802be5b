"""The doctor: which process holds what, on recorded trees of /proc and with a real lock."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from xmp._os import marks, proc
from xmp._os.ports import lease
from xmp._os.probe import examination, holders
from xmp._words.types import HostFacts, Request

TORCH = {"torch": "2.13.0+cpu"}


def process(root: Path, pid: int, *, parent: int = 1, files: dict[str, str] | None = None) -> Path:
    """A process in a recorded /proc: running for 100 s, with open ``files``."""
    folder = root / "proc" / str(pid)
    (folder / "fd").mkdir(parents=True)
    for name, target in (files or {}).items():
        (folder / "fd" / name).symlink_to(target)
    ticks = (1000 - 100) * os.sysconf("SC_CLK_TCK")
    fields = ["S", str(parent), *["0"] * 17, str(ticks), "0"]
    (folder / "stat").write_text(f"{pid} (a (b) c) {' '.join(fields)}\n")
    (folder / "cmdline").write_bytes(b"python\0train.py\0")
    (folder / "environ").write_bytes(b"HOME=/root\0")
    (root / "proc/uptime").write_text("1000.00 2000.00\n")
    return folder


def host(**given: Any) -> HostFacts:
    return HostFacts(**{"frameworks": TORCH, "cpus": (0, 1), "memory_bytes": 8 << 30, **given})


def texts(facts: HostFacts, root: str | Path = "/", **request: Any) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {"problem": [], "warning": [], "note": []}
    for finding in examination.examine(facts, Request(**request), lease, root):
        found[finding.level].append(str(finding))
    return found


def tree(root: Path) -> Path:
    (root / "dev/shm").mkdir(parents=True)
    return root


def test_a_healthy_host_has_no_problem(tmp_path: Path) -> None:
    found = texts(host(), tree(tmp_path))
    assert found["problem"] == []
    assert any("2 replicas with cpu" in text for text in found["note"])


def test_the_holder_of_a_chip(tmp_path: Path) -> None:
    process(
        tree(tmp_path), 99994242, files={"3": "/dev/vfio/0", "4": "/dev/vfio/1", "5": "/dev/null"}
    )
    process(tmp_path, 99994243, files={"3": "/dev/vfio/vfio"})
    facts = host(tpu={"generation": "v5e", "chips": 8}, frameworks={**TORCH, "torch_xla": "2.13"})
    (held,) = [text for text in texts(facts, tmp_path)["problem"] if "held" in text]
    assert "/dev/vfio/0, /dev/vfio/1 is held by pid 99994242" in held
    assert "running for 100 s): python train.py" in held or "running for 1 min" in held
    assert "kill 99994242" in held
    on_cores = texts(facts, tmp_path, runtime="cpu")
    assert any("99994242" in text for text in on_cores["warning"])
    assert not any("99994242" in text for text in on_cores["problem"])


LOCKER = """
import fcntl, sys
file = open(sys.argv[1], "w")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def test_the_holder_of_libtpus_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = tmp_path / "lockfile"
    lock.touch()
    monkeypatch.setattr(holders, "LOCK", str(lock).lstrip("/"))
    assert holders.lock_holders(Path("/")) == []  # the file alone locks nothing
    with subprocess.Popen(
        [sys.executable, "-c", LOCKER, str(lock)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as locker:
        assert locker.stdout is not None
        assert locker.stdout.readline() == "held\n"
        found = holders.lock_holders(Path("/"))
        locker.communicate(timeout=30)
    assert [holder.pid for holder in found] == [locker.pid]
    assert found[0].user
    assert holders.lock_holders(Path("/")) == []
    with lock.open("w") as mine:
        fcntl.flock(mine, fcntl.LOCK_EX)  # another kind of lock, which libtpu does not take
        assert holders.lock_holders(Path("/")) == []


def test_orphaned_replicas(tmp_path: Path) -> None:
    process(tree(tmp_path), 70)
    launcher = proc.process(70, tmp_path)
    assert launcher is not None
    gone, alive = (marks.Mark(pid, launcher.started, "-", "-", 300) for pid in (69, 70))
    for pid, parent, mark, limit in (
        *((77, 1, gone, gone.limit), (78, 70, alive, alive.limit)),
        *((79, 1, "", "unlimited"), (80, 1, gone, "unlimited")),
    ):
        folder = process(tmp_path, pid, parent=parent)
        (folder / "environ").write_bytes(f"RANK=1\0XMP_LAUNCHER={mark}\0".encode())
        (folder / "oom_score_adj").write_text("300\n")
        (folder / "limits").write_text(f"Max file locks {limit} unlimited locks\n")
    found = [text for text in texts(host(), tmp_path)["warning"] if "earlier launch" in text]
    assert len(found) == 2
    assert "left by an earlier launch: pid 77" in found[0]
    assert "xmp clean" in found[0]
    assert "may be left by an earlier launch: pid 80" in found[1]
    assert "kill 80 if it is yours" in found[1]


@pytest.mark.parametrize(
    ("facts", "level", "text"),
    [
        (
            host(frameworks={"torch": "2.13.0+cpu", "torch_xla": "2.9.0"}),
            "problem",
            "torch_xla 2.9.0 with torch 2.13.0+cpu -> install torch==2.9.*",
        ),
        (
            host(frameworks={"torch": "2.9.0", "torch_tpu": "0.2.0"}),
            "problem",
            "torch_tpu 0.2.0 with torch 2.9.0 -> install torch 2.11 to 2.15",
        ),
        (host(frameworks={"jax": "0.10.2", "jaxlib": "0.9.0"}), "problem", "jaxlib==0.10.2"),
        (host(env={"XMP_RUNTIME": "nothing"}), "problem", "XMP_RUNTIME='nothing' is not known"),
        (host(env={"XMP_RUNTIME": "jax"}, frameworks={"jax": None}), "problem", "not installed"),
        (host(env={"NCCL_ALGO": "Ring"}), "note", "NCCL_ALGO=Ring is not the default"),
        (host(env={"XLA_FLAGS": "--x"}), "note", "XLA_FLAGS=--x is not the default"),
        (host(env={"OMP_NUM_THREADS": "8"}), "warning", "2 replicas with 8 threads on 2 cores"),
        (host(memory_bytes=1 << 30), "warning", "0.5 GiB for each replica"),
        (host(env={"SLURM_PROCID": "1"}), "warning", "dropped SLURM_PROCID"),
        (
            host(tpu={"generation": "v5e", "chips": 1}, frameworks={"jax": "0.9", "jaxlib": "0.9"}),
            "warning",
            "TPU chips and no libtpu",
        ),
    ],
)
def test_findings(tmp_path: Path, facts: HostFacts, level: str, text: str) -> None:
    found = texts(facts, tree(tmp_path))[level]
    assert any(text in line for line in found), found


def test_a_package_that_xmp_needs_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    found = examination.examine(host(), Request(), lease, tree(tmp_path))
    (missing,) = (each for each in found if each.level == "problem")
    assert str(missing).startswith("problem: xmp needs the package cloudpickle, which is not inst")
    assert (missing.advice, missing.code) == ("pip install cloudpickle", "XMP-S01")


def test_replicas_of_one_thread_share_the_cores(tmp_path: Path) -> None:
    found = texts(host(), tree(tmp_path), nprocs=8)
    assert "note: 8 replicas with 1 thread on 2 cores: they share the cores" in found["note"]
    assert "OMP_NUM_THREADS" not in str(found)


def test_a_request_that_does_not_fit_is_a_problem(tmp_path: Path) -> None:
    assert any(
        "nprocs=3" in t for t in texts(host(), tmp_path, runtime="fake", nprocs=3)["problem"]
    )


def test_a_finding_has_the_code_of_its_error(tmp_path: Path) -> None:
    asked = Request(runtime="x [XMP-P06] y")
    (refused, *_) = examination.examine(host(), asked, lease, tree(tmp_path))
    assert (refused.level, refused.code) == ("problem", "XMP-P06")
    assert refused.text.endswith(" [XMP-P06]")


def test_a_fixed_port_that_is_taken_is_a_problem(tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.2", 0)) as taken:
        port = str(taken.getsockname()[1])
        env = {"NNODES": "2", "NODE_RANK": "0", "MASTER_ADDR": "127.0.0.2", "MASTER_PORT": port}
        found = texts(host(env=env), tree(tmp_path))["problem"]
    assert any(f"port {port}" in text and "served" in text for text in found)


def distribution(folder: Path, name: str, version: str, *files: str) -> None:
    """A distribution as pip records it: a folder with its metadata and the list of its files."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("xmp", ("xmp/main.py", "../../bin/xmp")),  # as 0.0.1 on the package index
        ("xmp", ()),
        ("stranger", ("xmp/__init__.py",)),
        ("stranger", ("xmp.py",)),
    ],
)
def test_a_foreign_distribution_of_the_same_import_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, files: tuple[str, ...]
) -> None:
    distribution(tmp_path / "site", name, "9.8.7", *files)
    monkeypatch.syspath_prepend(tmp_path / "site")
    found = texts(host(), tree(tmp_path))
    (line,) = [text for text in found["warning"] if "9.8.7" in text]
    assert f"{name} 9.8.7 is another project with the import name xmp" in line
    assert f"pip uninstall {name} xmp-spawn; pip install . in the source of xmp" in line
    assert found["problem"] == []


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("xmp-spawn", ("xmp/__init__.py", "xmp/_calls/spawn.py")),
        ("xmp_spawn", ("xmp/__init__.py",)),
        ("python-xmp-toolkit", ("libxmp/__init__.py",)),
        ("beside", ("xmpfiles/__init__.py", "data/xmp/x.py")),
    ],
)
def test_other_distributions_own_other_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, files: tuple[str, ...]
) -> None:
    distribution(tmp_path / "site", name, "9.8.7", *files)
    (tmp_path / "site/~mp-9.8.7.dist-info").mkdir()  # as an interrupted removal leaves it
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert not any("9.8.7" in text for text in texts(host(), tree(tmp_path))["warning"])


def test_problems_come_first(tmp_path: Path) -> None:
    facts = host(env={"XMP_RUNTIME": "x"})
    levels = [f.level for f in examination.examine(facts, Request(), lease, tree(tmp_path))]
    assert levels == sorted(levels, key=["problem", "warning", "note"].index)


def test_the_command_says_whether_a_launch_would_work() -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "xmp", "doctor", *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    well = run("--runtime", "cpu")
    assert well.returncode == 0, well.stdout + well.stderr
    ill = run("--runtime", "fake", "-n", "3")
    assert ill.returncode == 1
    assert ill.stdout.startswith("problem: nprocs=3 does not fit")


def test_it_advises_nothing_about_what_is_not_set() -> None:
    words = ("doctor", "-n", "8")
    done = subprocess.run(
        [sys.executable, "-m", "xmp", *words],
        env={name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "OMP_NUM_THREADS" not in done.stdout


def test_the_command_names_a_foreign_distribution(tmp_path: Path) -> None:
    distribution(tmp_path, "xmp", "0.0.1", "xmp/main.py")
    done = subprocess.run(
        [sys.executable, "-m", "xmp", "doctor", "--runtime", "cpu"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "warning: xmp 0.0.1 is another project with the import name xmp" in done.stdout
