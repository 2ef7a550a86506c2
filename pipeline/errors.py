"""The errors of this project, each with a message of one sentence. The command line turns them into exit codes."""

import difflib
import textwrap
from collections.abc import Iterable

MAX_REASON_CHARACTERS = 200
"""Number of characters of another library's error that our error repeats."""
MALFORMED = (
    LookupError, TypeError, ValueError, ArithmeticError, AttributeError, AssertionError, RuntimeError, MemoryError,
)  # fmt: skip
"""Exceptions of computations on stored settings and arrays that are not in the form in which their class wrote them."""


class JointspaceError(Exception):
    """A failure whose message names the file (and row) and the remedy. Exit code 1."""

    exit_code = 1


class UsageError(JointspaceError):
    """The command or its configuration asks for something that does not exist. Exit code 2."""

    exit_code = 2


class InputError(JointspaceError):
    """Data from outside (photographs, sentences, weights, features) that cannot be used."""


class Refused(InputError):
    """A file that is not used, for one of a few fixed reasons. `detail` says more."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}"


class IntegrityError(JointspaceError):
    """An artefact of ours that is missing, incomplete, changed, or of another run than its neighbours."""


class RejectLimitError(JointspaceError):
    """Work that is done, although more input was rejected than the configuration allows. Exit code 3."""

    exit_code = 3


def too_many(rejected: int, given: int, limit: float) -> bool:
    """Return whether more than the share `limit` is rejected. A single reject is allowed unless the limit is zero."""
    return rejected > max(limit * given, limit > 0)


def brief(error: BaseException) -> str:
    """Return an error in one line. An error of a library has its type, because its message may be empty."""
    message = str(error) if isinstance(error, JointspaceError) else f"{type(error).__name__}: {error}"
    return textwrap.shorten(message, MAX_REASON_CHARACTERS, placeholder=" ...")


def meant(name: str, known: Iterable[str]) -> str:
    """Return `did you mean NAME? ` for the known name with the most similar spelling, or "" if there is none."""
    nearest = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {nearest[0]}? " if nearest else ""
