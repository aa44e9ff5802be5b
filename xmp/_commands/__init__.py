"""The command line: a module for each word, whose ``run`` prints and returns the exit status.

``run`` starts scripts: ``_run_options`` makes its flags of the table of options,
``_torchrun_words`` takes torchrun's, ``_hosts`` reads the hosts that options name, ``_engine``
starts them through an engine, ``_run_target`` reads the script. ``plan``, ``facts``, ``doctor``
show what would happen; ``stacks`` and ``clean`` look at launches of other programs.
``xmp/__main__`` has the parser, ``_unknown`` what it says of other words.

Tests: ``tests/commands``, ``tests/host/test_examination.py``.
"""

__all__: list[str] = []
