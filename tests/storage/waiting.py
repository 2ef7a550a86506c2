"""Holds the lock of a path, as whoever writes it does, until its input ends."""

import sys
from pathlib import Path

from pipeline.storage.locks import hold

with hold(Path(sys.argv[1])):
    sys.stdin.read()
