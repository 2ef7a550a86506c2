"""What can go wrong, in one sentence each; the command line turns these into exit codes."""

import difflib
import textwrap
from collections.abc import Iterable

LONGEST_REASON = 200
"""Characters of another library's error that an error of ours repeats."""
MALFORMED = (
    LookupError, TypeError, ValueError, ArithmeticError, AttributeError, AssertionError, RuntimeError, MemoryError,
)  # fmt: skip
"""What computation raises where stored settings and arrays are not of the form that their class wrote."""


class JointspaceError(Exception):
    """A failure whose message names the file (and row) and the remedy. Exit code 1."""

    exit_code = 1


class UsageError(JointspaceError):
    """The command or its configuration asks for something that does not exist. Exit code 2."""

    exit_code = 2


class InputError(JointspaceError):
    """Data from outside (photographs, sentences, weights, features) that cannot be used."""


class Refused(InputError):
    """A file that is not used, for a `reason` of a fixed few; `detail` says more."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}"


class IntegrityError(JointspaceError):
    """An artefact of ours that is missing, incomplete, changed, or of another run than its neighbours."""


class RejectLimitError(JointspaceError):
    """Done, but more input was rejected than the configuration allows. Exit code 3."""

    exit_code = 3


def too_many(rejected: int, given: int, limit: float) -> bool:
    """Whether more than the share `limit` is rejected; a single one never is, unless none may be."""
    return rejected > max(limit * given, limit > 0)


def brief(error: BaseException) -> str:
    """An error in one line; other people's with its type, which may be all that it says."""
    said = str(error) if isinstance(error, JointspaceError) else f"{type(error).__name__}: {error}"
    return textwrap.shorten(said, LONGEST_REASON, placeholder=" ...")


def meant(name: str, known: Iterable[str]) -> str:
    """`did you mean NAME? `, for the one of `known` that is spelt most like `name`; nothing where none is."""
    nearest = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {nearest[0]}? " if nearest else ""
