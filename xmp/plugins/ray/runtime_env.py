"""``runtime_env=`` of a launch: what Ray prepares on the hosts, for the actors and their replicas.

Ray takes local folders in ``ray.init`` alone; an actor's must lie where all hosts reach them (Ray
2.60, runtime_env/runtime_env.py). So they are stored in the cluster first, as ``ray.init`` does it.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from typing import Any

from xmp._words.errors import PlanError

__all__ = ["checked", "in_words", "stored"]

_OF_JOBS = ("worker_process_setup_hook",)
"""What Ray takes for whole jobs only."""


def checked(given: object) -> dict[str, Any]:
    """Return the mapping as Ray takes it. Raise TypeError, PlanError for keys that Ray ignores."""
    if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
        kind = type(given).__name__
        raise TypeError(
            "runtime_env must be a mapping such as "
            f'{{"working_dir": ".", "env_vars": {{"NAME": "value"}}}}, not {kind}'
        )
    from ray.runtime_env import RuntimeEnv

    known = set(RuntimeEnv.known_fields) - {*_OF_JOBS}
    known = {name for name in known if not name.startswith("_")}
    unknown = sorted(set(given) - known)
    if unknown and "RAY_RUNTIME_ENV_PLUGINS" not in os.environ:
        hint = "; give it to ray.init(runtime_env=...)" if {*unknown} & {*_OF_JOBS} else ""
        raise PlanError(
            f"runtime_env has {', '.join(unknown)}. Allowed for a launch: "
            f"{', '.join(sorted(known))}{hint}",
            code="XMP-H07",
        )
    return dict(given)


def stored(given: Mapping[str, Any]) -> str:
    """Return it as JSON, with local folders as they are stored in the cluster now.

    Equal texts mean equal contents. Raises PlanError, and TypeError for values of a wrong type.
    """
    from ray.exceptions import RuntimeEnvSetupError
    from ray.runtime_env import RuntimeEnv

    try:
        found = RuntimeEnv(**_uploaded(dict(given)))
        return json.dumps(found.to_dict(), sort_keys=True)
    except (ValueError, RuntimeEnvSetupError) as error:
        raise PlanError(
            f"runtime_env: {error}", code="XMP-H07"
        ) from None  # its values may be secrets
    except TypeError as error:
        raise TypeError(f"runtime_env: {error}") from None


def in_words(error: BaseException) -> str:
    """Return what Ray says of hosts that cannot prepare it: the reason, then the whole text."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"Ray cannot prepare runtime_env on a host: {lines[-1]}\n\n{str(error).rstrip()}"


def _uploaded(env: dict[str, Any]) -> dict[str, Any]:
    """Return it with the addresses of what ``working_dir`` and ``py_modules`` lead to."""
    if not env.keys() & {"working_dir", "py_modules"}:
        return env
    try:  # Ray has no public function for it
        from ray._private.runtime_env.py_modules import upload_py_modules_if_needed
        from ray._private.runtime_env.working_dir import upload_working_dir_if_needed
    except ImportError:
        return env  # RuntimeEnv takes addresses alone, then
    respects = os.environ.get("RAY_RUNTIME_ENV_IGNORE_GITIGNORE", "0") != "1"
    with tempfile.TemporaryDirectory(prefix="xmp-") as folder:
        for upload in (upload_py_modules_if_needed, upload_working_dir_if_needed):
            env = upload(env, include_gitignore=respects, scratch_dir=folder, logger=None)
    env.pop("excludes", None)  # as ray.init does
    return env
