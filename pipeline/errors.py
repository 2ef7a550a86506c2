"""The exceptions of this project. The command line prints the message of an exception and ends with its exit code."""

import difflib
import textwrap
from collections.abc import Iterable

MAX_REASON_CHARACTERS = 200
"""Maximum number of characters of a message that `brief` returns. A longer message is cut between two words and ends
with ` ...`."""
MALFORMED = (
    LookupError, TypeError, ValueError, ArithmeticError, AttributeError, AssertionError, RuntimeError, MemoryError,
)  # fmt: skip
"""Types of exceptions that code may raise if stored settings and arrays do not have the form that their class
expects."""


class JointspaceError(Exception):
    """Base class of all exceptions of this project. The message names the file (and row) and says what to do.

    A command that ends with this exception has the exit code 1, or the `exit_code` of the subclass.
    """

    exit_code = 1


class UsageError(JointspaceError):
    """Error in a command or a configuration, such as an unknown key or a missing run. Exit code 2."""

    exit_code = 2


class InputError(JointspaceError):
    """Error in data that the user supplied (photos, captions, weights, features). Exit code 1."""


class Refused(InputError):
    """Rejection of a file of the user. `reason` is one of a few fixed texts, by which rejected files are counted, and
    `detail` describes the fault of this file. The message is `reason: detail`."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}"


class IntegrityError(JointspaceError):
    """Error in a file that jointspace wrote: it is missing, incomplete or changed, or belongs to another run. Exit code
    1."""


class RejectLimitError(JointspaceError):
    """Error of a command that has done its work, but could not use a part of its input: more files or captions were
    rejected than the configuration allows, or lines of a file or queries could not be used. Exit code 3."""

    exit_code = 3


def too_many(rejected: int, given: int, limit: float) -> bool:
    """Return whether more inputs were rejected than the configuration allows.

    The allowed number is the share `limit` (0 to 1) of `given`, the number of all inputs. A single rejected input is
    never too many, unless `limit` is zero.
    """
    return rejected > max(limit * given, limit > 0)


def brief(error: BaseException) -> str:
    """Return the message of an error on one line, cut to MAX_REASON_CHARACTERS.

    The name of the type of the error precedes the message, because messages of libraries may be empty. A
    JointspaceError has no such name before its message.
    """
    message = str(error) if isinstance(error, JointspaceError) else f"{type(error).__name__}: {error}"
    return textwrap.shorten(message, MAX_REASON_CHARACTERS, placeholder=" ...")


def similar_name(name: str, known: Iterable[str]) -> str | None:
    """Return the name in `known` whose spelling is most similar to `name`, or None if no spelling is similar."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1)), None)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the question `Did you mean NAME? `, with a space at its end, for the known name whose spelling is most
    similar to `name`. Return "" if no spelling is similar."""
    nearest = similar_name(name, known)
    return f"Did you mean {nearest}? " if nearest else ""
