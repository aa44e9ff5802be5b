"""What torchrun starts: the function of another script, with the rank that torchrun gives."""

import importlib
import json
import os
import sys

from meeting import Meeting

if __name__ == "__main__":
    fn = importlib.import_module(sys.argv[1]).fn
    path, count, *rest = json.loads(sys.argv[2])
    fn(int(os.environ["RANK"]), Meeting(path, count), *rest)
