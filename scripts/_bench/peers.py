"""``--peers``: other launchers, each on what it can do, in an environment of their own."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path

from cases import Case
from figures import Figures
from report import shown
from rich.console import Console
from rich.table import Table
from runner import Runner

FOLDER = Path(__file__).resolve().parents[2] / ".venv-bench"
PACKAGES = ("accelerate", "torchrunx", "loky", "ray")
NAMES = ("torchrun", "debug_launcher", "torchrunx", "loky", "ray")
GROUPS = ("torchrun", "debug_launcher", "torchrunx")  # these prepare torch's process group
POOLS = ("loky", "ray")  # these carry large arguments and results
CASES = (
    Case("peers: call to last replica in fn, warm", "work_entered.py", ("xmp", *NAMES)),
    Case("peers: call to first gloo all-reduce", "work_reduce.py", ("xmp", *GROUPS)),
    Case("peers: 512 MB argument", "work_array.py", ("xmp", *POOLS)),
    Case("peers: 256 MB from each of 8", "work_results.py", ("xmp", "pool", *POOLS)),
)


def prepare() -> str:
    """Make ``.venv-bench`` with the peers; what is in our own environment is seen from there."""
    python = FOLDER / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(FOLDER)], check=True)
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    answer = subprocess.run([python, "-c", code], check=True, stdout=subprocess.PIPE, text=True)
    Path(answer.stdout.strip(), "outer.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [str(python), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    subprocess.run([*pip, *PACKAGES], check=True)
    return str(python)


def measure(
    console: Console, cpus: Sequence[int], rounds: int, say: Callable[[str, str, int], None]
) -> Figures:
    """Every peer on every case that it is good for; xmp beside them in the same rounds."""
    console.print(f"[dim]{', '.join(PACKAGES)} in {FOLDER.name}[/]")
    python = prepare()
    figures = Figures()
    runner = Runner(figures, cpus, rounds, say, dict.fromkeys(NAMES, python))
    for case in CASES:
        runner.measure(case, case.systems)
    return figures


def show(console: Console, figures: Figures) -> None:
    """One line for each case: medians, and how many times xmp's each is."""
    table = Table(title="beside other launchers")
    for heading in ("work", "system", "median", "beside xmp"):
        table.add_column(heading, justify="left" if heading == "work" else "right")
    for case in CASES:
        ours = (case.name, "xmp", "seconds")
        for number, system in enumerate(case.systems):
            key = (case.name, system, "seconds")
            title = "" if number else case.name.removeprefix("peers: ")
            if figures.has(key, ours):
                median = figures.median(key)
                ratio = f"{median / figures.median(ours):.1f}×"
                table.add_row(title, system, shown(median, "s"), ratio)
            else:
                table.add_row(title, system, "–", "")
        table.add_section()
    console.print(table)
    console.print("[dim]loky and ray: workers that stay, nothing is started per call[/]")
    for (case_name, system), reason in figures.failed.items():
        console.print(f"[red]not measured:[/] {case_name}, {system}:", reason, markup=False)
