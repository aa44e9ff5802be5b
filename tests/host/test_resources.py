"""Free memory and /dev/shm, on recorded trees."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from xmp._os.ports import lease
from xmp._os.probe import examination, resources
from xmp._os.probe.findings import memory, shared
from xmp._words.types import HostFacts, Request

MIB, GIB = 1 << 20, 1 << 30
MACHINE = {"proc/meminfo": f"MemTotal: {16 << 20} kB\nMemAvailable:    {8 << 20} kB\n"}
UNIFIED = {
    **MACHINE,
    "proc/self/cgroup": "0::/pod/job\n",
    "sys/fs/cgroup/pod/job/memory.max": "max",
    "sys/fs/cgroup/pod/job/memory.current": str(3 * GIB),
    "sys/fs/cgroup/pod/memory.max": str(4 * GIB),
    "sys/fs/cgroup/pod/memory.current": str(7 * GIB // 2),
    "sys/fs/cgroup/pod/memory.stat": f"anon 5\nfile 7\ninactive_file {GIB}\nactive_file 9\n",
}
FIRST = {
    **MACHINE,
    "proc/self/cgroup": "5:cpu,cpuacct:/\n4:memory:/job\n",
    "sys/fs/cgroup/memory/job/memory.limit_in_bytes": str(4 * GIB),
    "sys/fs/cgroup/memory/job/memory.usage_in_bytes": str(3 * GIB),
    "sys/fs/cgroup/memory/job/memory.stat": f"inactive_file 0\ntotal_inactive_file {GIB // 2}\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": str(9 * GIB),
}


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in {"dev/shm/.keep": "", **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({}, None),
        (MACHINE, (8 * GIB, "the machine")),
        # The cache that the kernel would drop counts as free, under either name.
        (UNIFIED, (3 * GIB // 2, "the memory control group")),
        (FIRST, (3 * GIB // 2, "the memory control group")),
        ({**UNIFIED, "sys/fs/cgroup/pod/memory.max": "max"}, (8 * GIB, "the machine")),
        (
            {**UNIFIED, "sys/fs/cgroup/pod/memory.max": str(GIB)},  # lowered below what is used
            (0, "the memory control group"),
        ),
    ],
)
def test_free_memory_is_that_of_the_fullest_group(
    tmp_path: Path, files: dict[str, str], free: tuple[int, str] | None
) -> None:
    assert resources.memory_free(tree(tmp_path, files)) == free


def findings(root: Path) -> list[str]:
    facts = HostFacts(cpus=(0, 1, 2, 3), memory_bytes=16 * GIB)
    request = Request(runtime="cpu", nprocs=4)
    return [str(found) for found in examination.examine(facts, request, lease, root)]


def test_less_than_a_framework_takes_is_a_warning(tmp_path: Path) -> None:
    found = findings(tree(tmp_path, UNIFIED))
    (line,) = [text for text in found if "of memory free" in text]
    assert line.startswith(
        "warning: 1.5 GiB of memory free (of the memory control group), 0.4 GiB for each replica"
    )
    assert "MpModelWrapper" in line
    assert any(
        text.startswith("note: 8.0 GiB of memory free (of the machine), 2.0 GiB for each")
        for text in findings(tree(tmp_path, {**MACHINE, "proc/self/cgroup": ""}))
    )


def test_a_full_group_is_a_warning(tmp_path: Path) -> None:
    files = {**UNIFIED, "sys/fs/cgroup/pod/memory.max": str(GIB)}
    (line,) = map(str, memory(tree(tmp_path, files), None, 4))
    assert line.startswith("warning: 0 MiB of memory free (of the memory control group)")


def test_a_host_that_says_nothing_is_left_alone(tmp_path: Path) -> None:
    assert list(memory(tree(tmp_path, {}), None, 4)) == []


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ((8 * GIB, 8 * GIB), []),
        (None, ["this host has no /dev/shm"]),
        (
            (64 * MIB, 64 * MIB),
            ["/dev/shm has only 64 MiB -> make it larger: docker run --shm-size"],
        ),
        ((8 * GIB, 80 * MIB), ["/dev/shm is nearly full: 80 MiB of 8.0 GiB free"]),
        ((64 * MIB, 0), ["has only 64 MiB", "nearly full: 0 MiB of 64 MiB free"]),
        ((500 * GIB, 30 * GIB), []),
    ],
)
def test_shared_memory(found: tuple[int, int] | None, words: list[str]) -> None:
    lines = [str(finding) for finding in shared(found)]
    assert len(lines) == len(words)
    for line, text in zip(lines, words, strict=True):
        assert line.startswith("warning: ")
        assert text in line


CONTAINER = """
import ctypes, json, os, sys
libc = ctypes.CDLL(None)
root = sys.argv[1]
# CLONE_NEWNS, and MS_REC | MS_PRIVATE: other processes do not see what is mounted here.
if libc.unshare(0x20000) or libc.mount(None, b"/", None, 0x44000, None):
    sys.exit("refused")
target = os.path.join(root, "dev/shm").encode()
if libc.mount(b"shm", target, b"tmpfs", 0, b"size=64m"):
    sys.exit("refused")
from pathlib import Path
from xmp._os.probe.findings import shared, shared_memory
empty = shared_memory(Path(root))
with open(target + b"/left", "wb") as file:
    file.write(bytes(60 << 20))
print(json.dumps([empty, [str(f) for f in shared(shared_memory(Path(root)))]]))
"""


@pytest.mark.root
def test_what_docker_gives_a_container(tmp_path: Path) -> None:
    root = tree(tmp_path, {})
    done = subprocess.run(
        [sys.executable, "-c", CONTAINER, str(root)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(examination.__file__).parents[2])},
    )
    if done.stderr.strip() == "refused":
        pytest.skip("the kernel refuses mounts here")
    assert done.returncode == 0, done.stderr
    empty, full = json.loads(done.stdout)
    assert empty == [64 * MIB, 64 * MIB]
    assert "/dev/shm has only 64 MiB" in full[0]
    assert "/dev/shm is nearly full: 4 MiB of 64 MiB free" in full[1]
