"""The facts of a host; recorded trees of files stand for machines that are not here."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.fresh import in_fresh_interpreter
from xmp._os import probe
from xmp._os.probe import metadata


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def pci(
    slot: str, device: str, subsystem: str = "0x0000", vendor: str = "0x1ae0"
) -> dict[str, str]:
    base = f"sys/bus/pci/devices/{slot}"
    return {
        f"{base}/vendor": f"{vendor}\n",
        f"{base}/device": f"{device}\n",
        f"{base}/subsystem_device": f"{subsystem}\n",
    }


def tpus(device: str, count: int, subsystem: str = "0x0000") -> dict[str, str]:
    slots = (f"0000:00:{4 + i:02x}.0" for i in range(count))
    return {k: v for slot in slots for k, v in pci(slot, device, subsystem).items()}


@pytest.mark.parametrize(
    ("device", "subsystem", "functions", "expected"),
    [
        ("0x0027", "0x004e", 4, {"generation": "v2", "chips": 4, "devices": 8}),
        ("0x0027", "0x004f", 4, {"generation": "v3", "chips": 4, "devices": 8}),
        ("0x005e", "0x0000", 4, {"generation": "v4", "chips": 4, "devices": 4}),
        ("0x0062", "0x0000", 4, {"generation": "v5p", "chips": 4, "devices": 4}),
        ("0x0063", "0x0000", 8, {"generation": "v5e", "chips": 8, "devices": 8}),
        ("0x006f", "0x0000", 1, {"generation": "v6e", "chips": 1, "devices": 1}),
        ("0x0076", "0x0000", 8, {"generation": "7x", "chips": 4, "devices": 8}),
    ],
)
def test_tpu_chips_by_their_pci_ids(
    tmp_path: Path, device: str, subsystem: str, functions: int, expected: dict[str, object]
) -> None:
    root = write(tmp_path, tpus(device, functions, subsystem))
    found = probe.facts(root=root).tpu
    assert {name: found[name] for name in expected} == expected


def functions(slots: list[str]) -> dict[str, str]:
    return {k: v for slot in slots for k, v in pci(slot, "0x0076").items()}


@pytest.mark.parametrize(
    ("slots", "chips"),
    [
        ([f"0000:00:0{4 + i}.{f}" for i in range(4) for f in (0, 1)], 4),  # both cores of a chip
        ([f"0000:00:{4 + i:02x}.0" for i in range(8)], 4),  # each core in its own slot
        ([f"0000:00:0{4 + i}.0" for i in range(4)], 4),  # one function for a chip
        (["0000:00:04.0", "0000:00:04.1"], 1),
    ],
)
def test_7x_chips_behind_four_or_eight_functions(
    tmp_path: Path, slots: list[str], chips: int
) -> None:
    found = probe.facts(root=write(tmp_path, functions(slots))).tpu
    assert (found["chips"], found["devices"]) == (chips, 2 * chips)


def test_a_container_owns_only_the_chips_whose_nodes_it_has(tmp_path: Path) -> None:
    nodes = {f"dev/vfio/{name}": "" for name in ("0", "1", "vfio")}
    root = write(tmp_path, {**tpus("0x006f", 8), **nodes})
    found = probe.facts(root=root).tpu
    assert (found["chips"], found["nodes"]) == (2, "vfio")


def test_an_unknown_accelerator_of_googles_is_named_and_its_network_card_is_none(
    tmp_path: Path,
) -> None:
    card = {**pci("0000:00:05.0", "0x0042"), "sys/bus/pci/devices/0000:00:05.0/class": "0x020000"}
    assert probe.facts(root=write(tmp_path / "card", card)).tpu == {}
    new = {**pci("0000:00:06.0", "0x0083"), "sys/bus/pci/devices/0000:00:06.0/class": "0x120000"}
    assert probe.facts(root=write(tmp_path / "new", {**card, **new})).tpu == {"unknown": "0x0083"}


def test_intels_cards_but_not_the_processors_own_graphics(tmp_path: Path) -> None:
    tree = {"dev/dri/renderD128": ""}
    for slot in ("0000:00:02.0", "0000:3a:00.0", "0000:9b:00.0"):
        tree |= pci(slot, "0x0bd5", vendor="0x8086")
        tree[f"sys/bus/pci/devices/{slot}/class"] = "0x038000"
    assert probe.facts(root=write(tmp_path, tree)).gpus == {"vendor": "intel", "count": 2}


def test_what_imports_have_changed_since_this_process_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = "LIBTPU_INIT_ARGS=--mine=1\0HOME=/root\0TF_CPP_MIN_LOG_LEVEL=2\0"
    root = write(tmp_path, {"proc/self/environ": began})
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--mine=1 --theirs=2")
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")
    monkeypatch.setenv("TPU_SKIP_MDS_QUERY", "1")
    assert probe.facts(root=root).env_at_start == {
        "LIBTPU_INIT_ARGS": "--mine=1",
        "TPU_SKIP_MDS_QUERY": "",
    }


def test_other_vendors_are_no_tpus(tmp_path: Path) -> None:
    root = write(tmp_path, pci("0000:00:04.0", "0x0063", vendor="0x8086"))
    assert probe.facts(root=root).tpu == {}


def test_gpus_are_counted_by_their_device_nodes(tmp_path: Path) -> None:
    nvidia = write(tmp_path / "n", {f"dev/nvidia{i}": "" for i in ("0", "1", "ctl", "-uvm")})
    assert probe.facts(root=nvidia).gpus == {"vendor": "nvidia", "count": 2}
    nodes = {f"sys/class/kfd/kfd/topology/nodes/{i}/gpu_id": text for i, text in enumerate("0123")}
    assert probe.facts(root=write(tmp_path / "a", nodes)).gpus == {"vendor": "amd", "count": 3}
    assert probe.facts(root=tmp_path / "none").gpus == {}


@pytest.mark.parametrize(
    ("cgroup", "files", "quota"),
    [
        ("0::/\n", {"cpu.max": "150000 100000"}, 1.5),
        ("0::/\n", {"cpu.max": "max 100000"}, None),
        ("0::/a/b\n", {"a/cpu.max": "200000 100000", "a/b/cpu.max": "400000 100000"}, 2.0),
        (
            "4:memory:/x\n2:cpu,cpuacct:/x\n",
            {
                "cpu,cpuacct/x/cpu.cfs_quota_us": "50000",
                "cpu,cpuacct/x/cpu.cfs_period_us": "100000",
            },
            0.5,
        ),
        (
            "2:cpu:/only/on/the/host\n",
            {"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"},
            3.0,
        ),
        ("2:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
    ],
)
def test_cpu_quota_of_both_cgroup_versions(
    tmp_path: Path, cgroup: str, files: dict[str, str], quota: float | None
) -> None:
    tree = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    root = write(tmp_path, {"proc/self/cgroup": cgroup, **tree})
    assert probe.facts(root=root).cpu_quota == quota


def test_memory_is_the_tightest_limit(tmp_path: Path) -> None:
    tree = {"proc/meminfo": "MemTotal:  1024 kB\n", "proc/self/cgroup": "0::/a\n"}
    assert probe.facts(root=write(tmp_path / "free", tree)).memory_bytes == 1024 * 1024
    tree |= {"sys/fs/cgroup/a/memory.max": "4096\n", "sys/fs/cgroup/memory.max": "max\n"}
    assert probe.facts(root=write(tmp_path / "tight", tree)).memory_bytes == 4096


def test_numa_nodes_in_numeric_order(tmp_path: Path) -> None:
    node = "sys/devices/system/node/node"
    tree = {f"{node}{i}/cpulist": f"{2 * i}-{2 * i + 1}\n" for i in range(11)}
    root = write(tmp_path, tree)
    assert probe.facts(root=root).numa == tuple((2 * i, 2 * i + 1) for i in range(11))


def test_environment_and_affinity_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    before = probe.facts()
    monkeypatch.setenv("FAKE_CHIPS", "8")
    assert "FAKE_CHIPS" not in before.env
    assert probe.facts().env["FAKE_CHIPS"] == "8"
    assert before.cpus == tuple(sorted(os.sched_getaffinity(0)))


def test_a_package_that_is_installed_later_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    assert probe.facts().frameworks["torch_tpu"] is None
    write(tmp_path, {"torch_tpu-0.2.0.dist-info/METADATA": "Name: torch_tpu\nVersion: 0.2.0\n"})
    os.utime(tmp_path, ns=(1, 1))
    assert probe.facts().frameworks["torch_tpu"] == "0.2.0"


@pytest.mark.parametrize(
    ("path", "version"),
    [
        ("torch_tpu-0.2.0.dist-info/METADATA", "0.2.0"),
        ("Torch_TPU-0.2.0+cpu.dist-info/METADATA", "0.2.0+cpu"),
        ("torch_tpu-0.2.0-py3.11.egg-info/PKG-INFO", "0.2.0"),
        ("torch_tpu.egg-info/PKG-INFO", "0.3.0"),  # setup.py develop
        ("torch_tpu_nightly-0.2.0.dist-info/METADATA", None),
        ("~orch_tpu-0.2.0.dist-info/METADATA", None),  # pip was interrupted
        ("torch_tpu-0.2.0.txt/METADATA", None),
    ],
)
def test_a_version_is_found_by_the_name_of_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, version: str | None
) -> None:
    write(tmp_path, {path: "Name: torch_tpu\nVersion: 0.3.0\n"})
    monkeypatch.syspath_prepend(str(tmp_path))
    assert probe.facts().frameworks["torch_tpu"] == version


PROGRAM = """
import sys
from xmp._os import probe
first = probe.facts()
assert first.frameworks["torch"], first
heavy = {"torch", "jax", "numpy", "requests", "email"} & set(sys.modules)
assert not heavy, heavy
"""


def test_facts_import_nothing_heavy() -> None:
    in_fresh_interpreter(PROGRAM)


@pytest.mark.parametrize(
    ("text", "build"),
    [
        ("cuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n", "9.9.0+cu12.8"),
        ("cuda: Optional[str] = None\nhip: Optional[str] = '6.4'\n", "9.9.0+rocm6.4"),
        ("cuda: Optional[str] = None\nhip: Optional[str] = None\n", "9.9.0+cpu"),
    ],
)
def test_the_build_of_torch_is_read_without_importing_it(
    tmp_path: Path, text: str, build: str
) -> None:
    tree = {
        "torch/__init__.py": "raise AssertionError('imported')",
        "torch/version.py": text,
        "torch-9.9.0.dist-info/METADATA": "Name: torch\nVersion: 9.9.0\n",
    }
    program = "from xmp._os import probe; print(probe.facts().frameworks['torch'])"
    path = os.pathsep.join([str(write(tmp_path, tree)), str(Path(probe.__file__).parents[3])])
    done = in_fresh_interpreter(program, {**os.environ, "PYTHONPATH": path})
    assert done.stdout.strip() == build


def test_probing_a_host_without_anything_takes_no_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "DEADLINE", 600.0)  # no server to ask
    facts = probe.facts(root=tmp_path, env={})
    assert (facts.tpu, facts.gpus, facts.cpu_quota, facts.memory_bytes) == ({}, {}, None, None)
