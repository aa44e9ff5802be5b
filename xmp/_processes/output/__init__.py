"""The replicas' output: the supervisor copies it to the launcher's streams and to log files.

``streams`` reads and writes without waiting, ``event_loop`` says when, ``capture`` puts prefixes
before lines and keeps the last ones for reports, ``log_files`` makes the files of ``log_dir=``.
Nothing of it is used where output goes straight to the launcher's streams.
Tests: ``tests/output``.
"""

__all__: list[str] = []
