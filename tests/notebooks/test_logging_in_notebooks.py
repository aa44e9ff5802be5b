"""What a cell has set up of ``logging`` holds in the replicas, which run no other cell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.notebook_kernel import BEGIN, text_of
from tests.support.stage import ROOT, Stage

pytestmark = [pytest.mark.first_pass, pytest.mark.failing]

Kernel = Callable[..., list[dict[str, Any]]]
FRESH = f"""{BEGIN}
import logging
logging.disable(logging.NOTSET)
for name in (None, 'mine', 'quiet'):
    logger = logging.getLogger(name)
    logger.setLevel(logging.NOTSET if name else logging.WARNING)
    for handler in logger.handlers[:]:
        logger.removeHandler(handler)
logging.getLogger('xmp').setLevel('ERROR')  # what it says of a slow start
"""
"""The first cell: as in a kernel where no other test has set anything up."""
FN = """
def fn(rank):
    import logging
    logging.getLogger().debug('not this')
    logging.getLogger('mine').info('info %d', rank)
    logging.getLogger('quiet.one').info('not this')
    logging.getLogger('quiet.one').error('error %d', rank)
"""


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_level_format_and_stream(method: str, shared_kernel: Kernel) -> None:
    cell = f"""
import logging
logging.basicConfig(level=logging.INFO, format='%(name)s|%(message)s', stream=sys.stdout)
logging.getLogger('quiet').setLevel('ERROR')
{FN}
start(fn, start_method={method!r})"""
    messages = shared_kernel(FRESH, cell)
    assert sorted(text_of(messages, 1).splitlines()) == [
        "mine|info 0", "mine|info 1", "quiet.one|error 0", "quiet.one|error 1",
    ], messages  # fmt: skip


def test_a_later_level_holds_for_later_launches(shared_kernel: Kernel) -> None:
    cells = (
        f"{FRESH}{FN}\nlogging.basicConfig(level='INFO', format='%(message)s')",
        "start(fn)",
        "logging.getLogger().setLevel('WARNING')\nstart(fn)",
        """
logging.getLogger('mine').addHandler(logging.StreamHandler(sys.stdout))
logging.getLogger('mine').setLevel('INFO')
start(fn)""",
        "logging.disable(logging.INFO)\nstart(fn)",
    )
    messages = shared_kernel(*cells)
    errors = ["error 0", "error 1"]
    infos = ["info 0", "info 1"]
    stderr = [sorted(text_of(messages, cell, "stderr").splitlines()) for cell in range(5)]
    # A logger's own level decides, not those of the loggers above it.
    assert stderr == [[], [*errors, *infos, *2 * ["not this"]], errors, [*errors, *infos], errors]
    assert sorted(text_of(messages, 3).splitlines()) == infos
    assert text_of(messages, 4) == ""


def test_a_handler_for_something_else_stays_in_the_kernel(shared_kernel: Kernel) -> None:
    cell = f"""
import io, logging
text = io.StringIO()
logging.basicConfig(level=logging.INFO, stream=text)
{FN}
start(fn)
print(repr(text.getvalue()))"""
    messages = shared_kernel(FRESH, cell)
    assert text_of(messages, 1) == "''\n", messages
    said = text_of(messages, 1, "stderr").splitlines()
    assert sorted(said) == ["error 0", "error 1"]  # by logging's last resort


def test_a_program_without_a_file_too(stage: Stage) -> None:
    source = f"""
import logging
logging.basicConfig(level='INFO', format='%(message)s')
import xmp
{FN}
xmp.spawn(fn, nprocs=2, runtime='cpu')
"""
    process = stage.start(source, file=False)
    shown = stage.outcome(process).err.splitlines()
    assert sorted(line for line in shown if "info" in line) == ["info 0", "info 1"]


def test_a_script_sets_up_its_own(stage: Stage) -> None:
    source = f"""
import logging
import xmp
{FN}
if __name__ == '__main__':
    logging.basicConfig(level='INFO', format='%(message)s')
    xmp.spawn(fn, nprocs=2, runtime='cpu')
"""
    shown = stage.run(source).err.splitlines()
    assert [line for line in shown if "info" in line] == []


LIBRARY = """
import logging
log = logging.getLogger(__name__)
log.setLevel('INFO')
if not logging.getLogger().hasHandlers():
    log.addHandler(logging.StreamHandler())
    log.propagate = False
logging.getLogger(f'{__name__}.part').setLevel('INFO')
"""
"""It sets up its log when it is imported, as Lightning does."""


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_a_library_that_sets_up_its_own(method: str, stage: Stage) -> None:
    stage.write(LIBRARY, "noisy.py")
    source = f"""
import logging
import noisy
import xmp
logging.getLogger('noisy.part').setLevel('ERROR')

def at_load(rank):
    noisy.log.info('loaded %d', rank)
    logging.getLogger('noisy.part').info('not this')

def inside(rank):
    import noisy
    noisy.log.info('inside %d', rank)

for fn in at_load, inside:
    xmp.spawn(fn, nprocs=2, runtime='cpu', start_method={method!r})
"""
    process = stage.start(source, file=False, env={"PYTHONPATH": f"{stage.folder}:{ROOT}"})
    done = stage.outcome(process)
    assert done.code == 0, done.err
    shown = sorted(line for line in done.err.splitlines() if line[-2:] in (" 0", " 1", "is"))
    assert shown == ["inside 0", "inside 1", "loaded 0", "loaded 1"], done.err
