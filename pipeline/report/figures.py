"""matplotlib's figures as files."""

import io

import matplotlib
from matplotlib.figure import Figure

SALT = {"svg.hashsalt": "jointspace"}
"""Without it the names of a file's parts are drawn anew each time."""


def to_svg(figure: Figure) -> bytes:
    """The same bytes for the same figure."""
    buffer = io.BytesIO()
    with matplotlib.rc_context(SALT):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()
