"""How a child of a test is to take SIGINT, for `preexec_fn` of subprocess: `nohup ... &` and some CI start the tests so
that they ignore it, and a child inherits that."""

import signal


def heed() -> None:
    """As a program in the foreground does."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def ignore() -> None:
    """As a job in the background does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
