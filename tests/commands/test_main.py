"""The command line, as a user starts it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import xmp as package
from tests.support.guide import shown_json

ROOT = Path(__file__).parents[2]


def xmp(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "xmp", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **env},
    )


def test_the_version() -> None:
    asked = xmp("--version")
    assert asked.returncode == 0, asked.stderr
    assert asked.stdout == f"xmp {package.__version__}\n"


def test_a_checkout_that_is_not_installed_has_the_version_that_a_build_gets() -> None:
    """The build reads that line of the package, and no other file has a version."""
    bare = [sys.executable, "-I", "-S", "-c"]
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import xmp; print(xmp.__version__)"
    done = subprocess.run([*bare, code], capture_output=True, text=True, timeout=60, check=True)
    source = (ROOT / "xmp/__init__.py").read_text()
    # As Hatch finds it: https://hatch.pypa.io/latest/plugins/version-source/regex/
    (found,) = re.findall(r"^__version__ = \"(\d+\.\d+\.\d+)\"", source, re.MULTILINE)
    assert done.stdout.strip() == found == package.__version__
    project = (ROOT / "pyproject.toml").read_text()
    assert re.search(r'^dynamic = \[.*"version".*\]', project, re.MULTILINE)
    assert 'path = "xmp/__init__.py"' in project
    assert not re.search(r"^version\b", project, re.MULTILINE)


def test_facts_feed_a_plan(tmp_path: Path) -> None:
    facts = xmp("facts", "--json", FAKE_CHIPS="8")
    assert facts.returncode == 0, facts.stderr
    file = tmp_path / "facts.json"
    file.write_text(facts.stdout)
    plan = xmp("plan", "--runtime", "fake", "--facts", str(file), "--json")
    assert plan.returncode == 0, plan.stderr
    data = json.loads(plan.stdout)
    assert (data["runtime"], data["world_size"]) == ("fake", 8)


def test_a_plan_for_people() -> None:
    plan = xmp("plan", "-n", "3", "--runtime", "cpu")
    assert plan.returncode == 0, plan.stderr
    assert "runtime   cpu: runtime='cpu'" in plan.stdout
    assert "WORLD_SIZE=3" in plan.stdout


def test_facts_for_people() -> None:
    facts = xmp("facts")
    assert facts.returncode == 0, facts.stderr
    assert "hostname: " in facts.stdout
    assert "cpus: [" in facts.stdout


def test_facts_tell_no_secrets() -> None:
    secrets = {
        "HUGGING_TOKEN": "hunter2",
        "AWS_SECRET_ACCESS_KEY": "hunter2",
        "https_proxy": "http://me:hunter2@proxy:3128",
    }
    for arguments in (("facts",), ("facts", "--json")):
        facts = xmp(*arguments, **secrets)
        assert facts.returncode == 0, facts.stderr
        assert "hunter2" not in facts.stdout
        assert "https_proxy" in facts.stdout


def test_several_facts_are_several_hosts(tmp_path: Path) -> None:
    files = []
    for address in ("10.0.0.1", "10.0.0.2"):
        file = tmp_path / f"{address}.json"
        file.write_text(json.dumps({"version": 1, "address": address, "cpus": [0, 1]}))
        files += ["--facts", str(file)]
    plan = xmp("plan", "-n", "2", "--json", *files)
    assert plan.returncode == 0, plan.stderr
    data = json.loads(plan.stdout)
    assert [host["address"] for host in data["hosts"]] == ["10.0.0.1", "10.0.0.2"]
    assert data["world_size"] == 4


def test_devices_are_positions() -> None:
    plan = xmp("plan", "--runtime", "fake", "--devices", "1,2", "--json")
    replicas = json.loads(plan.stdout)["hosts"][0]["replicas"]
    assert [r["device"] for r in replicas] == ["fake:1", "fake:2"]


def test_what_does_not_fit_is_one_line_and_status_1() -> None:
    refused = xmp("plan", "--runtime", "fake", "-n", "3")
    assert refused.returncode == 1
    assert refused.stderr.startswith("xmp: nprocs=3 does not fit this host")
    assert refused.stderr.endswith(" [XMP-P03]\n")
    assert refused.stderr.count("\n") == 1


def test_a_file_that_is_missing_or_no_facts_is_one_line(tmp_path: Path) -> None:
    missing = xmp("plan", "--facts", str(tmp_path / "none.json"))
    assert (missing.returncode, missing.stderr.count("\n")) == (1, 1)
    broken = tmp_path / "broken.json"
    broken.write_text("{]")
    refused = xmp("plan", "--facts", str(broken))
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)


def test_no_command_prints_the_help() -> None:
    alone, asked = xmp(), xmp("--help")
    assert (alone.returncode, alone.stderr) == (0, "")
    assert alone.stdout == asked.stdout


def test_findings_as_json_are_what_the_guide_says() -> None:
    done = xmp("doctor", "--json", "-n", "3", "--runtime", "fake", FAKE_CHIPS="2")
    assert done.returncode == 1, done.stderr
    data, shown = json.loads(done.stdout), shown_json("commands.md", "`xmp doctor --json`:")
    assert data.keys() == shown.keys()
    assert all(each.keys() == shown["findings"][0].keys() for each in data["findings"])
    refused = data["findings"][0]
    assert (refused["level"], refused["code"]) == ("problem", "XMP-P03")
    assert (data["version"], data["works"]) == (1, False)
    assert data["verdict"] == shown["verdict"]


def test_every_command_is_in_the_help_and_in_the_guide() -> None:
    text = xmp("--help").stdout
    commands = re.findall(r"^    ([a-z]+)  ", text, re.MULTILINE)
    page = (ROOT / "docs/guide/commands.md").read_text()
    assert {"plan", "facts", "doctor", "stacks", "clean", "explain"} <= set(commands)
    assert [name for name in commands if f"| `xmp {name}" not in page] == []


def test_every_command_has_a_module() -> None:
    commands = re.findall(r"^    ([a-z]+)  ", xmp("--help").stdout, re.MULTILINE)
    folder = ROOT / "xmp/_commands"
    assert sorted(commands) == sorted(path.stem for path in folder.glob("[a-z]*.py"))
