"""What replicas display appears in the cell: objects, HTML, figures, progress bars as text."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.notebook_kernel import BEGIN, displays_of, text_of

pytestmark = [pytest.mark.first_pass, pytest.mark.failing]

Kernel = Callable[..., list[dict[str, Any]]]


def errors_of(messages: list[dict[str, Any]]) -> list[str]:
    return [m["text"] for m in messages if m["name"] == "error"]


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_objects_are_shown_as_the_cell_would_show_them(method: str, shared_kernel: Kernel) -> None:
    cell = f"""
from IPython.display import HTML, JSON, Image
class Both:
    def _repr_mimebundle_(self, include=None, exclude=None):
        return {{'text/plain': 'both', 'application/x+json': {{'a': [1, None]}}}}, {{'about': 1}}
def fn(rank):
    if rank == 0:
        display(HTML('<b>bold</b>'), 22)
        display(Both())
        display(Image(b'\\x89PNG\\r\\n\\x1a\\n' + bytes(9)))
start(fn, start_method={method!r})"""
    messages = shared_kernel(BEGIN, cell)
    html, number, both, image = displays_of(messages, 1)
    assert html["text/html"] == "<b>bold</b>"
    assert number == {"text/plain": "22"}
    assert both == {"text/plain": "both", "application/x+json": {"a": [1, None]}}
    assert base64.b64decode(image["image/png"]).startswith(b"\x89PNG")
    assert errors_of(messages) == []


def test_text_and_displays_keep_their_order(shared_kernel: Kernel) -> None:
    cell = """
def fn(rank):
    for n in range(200 if rank == 0 else 0):
        print('text', n)
        display({'text/plain': f'shown {n}'}, raw=True)
start(fn, prefix='')
print('done')"""
    messages = shared_kernel(BEGIN, cell)
    texts = [m for m in messages if m["cell"] == 1]
    seen = "".join(
        m["text"] if m["name"] == "stdout" else f"{m['data']['text/plain']}\n" for m in texts
    )
    wanted = [line for n in range(200) for line in (f"text {n}", f"shown {n}")]
    assert seen.splitlines() == [*wanted, "done"]


@pytest.mark.parametrize("loaded", [False, True])
def test_figures_are_pictures_with_and_without_show(loaded: bool, shared_kernel: Kernel) -> None:
    before = "import matplotlib.pyplot as plt\nxmp.preload('matplotlib.pyplot')" if loaded else ""
    cell = """
def fn(rank):
    import matplotlib.pyplot as plt
    if rank == 0:
        plt.plot([1, 2])
        plt.show()
        print('between')
        plt.plot([2, 1])
start(fn)"""
    messages = shared_kernel(BEGIN, before, cell)
    got = [m["name"] for m in messages if m["cell"] == 2]
    assert got == ["display", "stdout", "display"], messages
    for data in displays_of(messages, 2):
        assert base64.b64decode(data["image/png"]).startswith(b"\x89PNG")


def test_a_display_is_updated_and_the_cell_cleared(shared_kernel: Kernel) -> None:
    cell = """
def fn(rank):
    from IPython.display import clear_output
    if rank == 0:
        handle = display('one', display_id=True)
        handle.update('two')
        clear_output(wait=True)
        display('three')
start(fn)"""
    messages = shared_kernel(BEGIN, cell)
    names = [m["name"] for m in messages if m["cell"] == 1]
    assert names == ["display", "update", "clear", "display"], messages
    first, second = (m["transient"]["display_id"] for m in messages if m.get("transient"))
    assert first == second
    assert displays_of(messages, 1, "update") == [{"text/plain": "'two'"}]


def test_bars_of_tqdm_are_text_that_is_redrawn(shared_kernel: Kernel) -> None:
    cell = """
from tqdm.auto import tqdm as auto
from tqdm.notebook import tqdm as widget, tnrange
def fn(rank):
    if rank == 0:
        for _ in auto(range(3), 'auto'): pass
        for _ in widget(range(3), 'widget'): pass
        for _ in tnrange(3, desc='range'): pass
        import tqdm.notebook
        for _ in tqdm.notebook.tqdm(range(3), 'later'): pass
start(fn)"""
    messages = shared_kernel(BEGIN, cell)
    assert errors_of(messages) == []
    shown = text_of(messages, 1, "stderr")
    for name in ("auto", "widget", "range", "later"):
        assert f"\r{name}:   0%|" in shown, messages
        assert f"\r{name}: 100%|" in shown
    assert text_of(messages, 1) == ""


def test_bars_of_fresh_interpreters_too(shared_kernel: Kernel) -> None:
    cell = """
from tqdm.notebook import tqdm as widget
def fn(rank):
    for _ in widget(range(3), f'widget {rank}'): pass
start(fn, start_method='spawn')"""
    shown = text_of(shared_kernel(BEGIN, cell), 1, "stderr")
    assert all(f"widget {rank}: 100%|" in shown for rank in (0, 1)), shown


def test_only_shown_ranks_display_and_children_print(shared_kernel: Kernel) -> None:
    cell = """
import multiprocessing
def child(rank):
    display(f'child of {rank}')
def fn(rank):
    display(f'rank {rank}')
    process = multiprocessing.get_context('fork').Process(target=child, args=(rank,))
    process.start(); process.join()
start(fn, show=1)"""
    messages = shared_kernel(BEGIN, cell)
    assert displays_of(messages, 1) == [{"text/plain": "'rank 1'"}]
    assert text_of(messages, 1) == "'child of 1'\n"


def test_what_no_browser_opens_is_left_out_by_name(shared_kernel: Kernel) -> None:
    cell = """
def fn(rank):
    if rank == 0:
        display({'text/html': 'x' * (15 << 20), 'text/plain': 'most'}, raw=True)
        display({'text/html': 'x' * (17 << 20), 'text/plain': 'more'}, raw=True)
start(fn)"""
    messages = shared_kernel(BEGIN, cell)
    most, more = displays_of(messages, 1)
    assert len(most["text/html"]) == 15 << 20
    assert more == {"text/plain": "more"}
    line = "xmp: what is displayed here has 17 MiB; a cell gets at most 16\n"
    assert line in text_of(messages, 1, "stderr")


def test_a_launch_that_is_not_joined_displays_while_it_runs(shared_kernel: Kernel) -> None:
    cells = (
        BEGIN,
        """
def fn(rank):
    display(f'rank {rank}')
    wait_for('seen')
context = start(fn, join=False)""",
        "wait_for('seen')",  # no thread is in join()
        "context.results()",
    )
    messages = shared_kernel(*cells, touch={"rank 0": "seen"})
    assert len(displays_of(messages, 1)) == 2, messages


def test_a_replica_that_sends_what_it_should_not_is_ended_alone(shared_kernel: Kernel) -> None:
    cell = """
def fn(rank):
    from xmp import _inside
    _inside.channel().show_in_cell('shout', '', [], [], '')
start(fn)"""
    messages = shared_kernel(BEGIN, cell, "print([*start(lambda rank: rank)])")
    (error,) = errors_of(messages)
    assert "sent its supervisor a malformed message (there is no such kind of display)" in error
    assert text_of(messages, 2) == "[0, 1]\n"


def test_what_the_front_end_refuses_ends_nothing(shared_kernel: Kernel) -> None:
    cell = """
def fn(rank):
    if rank == 0:
        display({'application/json': '{' * 10000}, raw=True)
        display('next')
    return rank
print([*start(fn)])"""
    messages = shared_kernel(BEGIN, cell)
    assert displays_of(messages, 1) == [{"text/plain": "'next'"}]
    assert text_of(messages, 1) == "[0, 1]\n"


def test_a_widget_is_its_text(shared_kernel: Kernel) -> None:
    cell = """
def fn(rank):
    import ipywidgets
    if rank == 0:
        display(ipywidgets.IntSlider(value=3))
start(fn)"""
    (shown,) = displays_of(shared_kernel(BEGIN, cell), 1)
    assert [*shown] == ["text/plain"]
    assert shown["text/plain"].startswith("IntSlider(value=3")
