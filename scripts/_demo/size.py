"""Print how much pip would download for the requirements given, as one sentence."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


def size_of(url: str) -> int:
    """Bytes behind ``url``, asked without fetching it; 0 if the server does not say."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "file":
        path = Path(urllib.request.url2pathname(parts.path))
        return path.stat().st_size if path.is_file() else 0
    try:
        request = urllib.request.Request(url, method="HEAD")
        with urllib.request.urlopen(request, timeout=10) as answer:
            return int(answer.headers.get("Content-Length", 0))
    except OSError:
        return 0


def main() -> None:
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "-qq", "--report", "-"]
    done = subprocess.run([*command, *sys.argv[1:]], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit("pip cannot find what is missing; its own words are above")
    urls = [entry["download_info"]["url"] for entry in json.loads(done.stdout)["install"]]
    with ThreadPoolExecutor(8) as pool:
        sizes = list(pool.map(size_of, urls))
    unknown = f", and {sizes.count(0) - 1} of unknown size" if sizes.count(0) > 1 else ""
    print(f"about {sum(sizes) / 1e6:,.0f} MB in {len(urls)} packages{unknown}")


if __name__ == "__main__":
    main()
