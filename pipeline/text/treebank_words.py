"""nltk's tokenizer of words without the rest of nltk, whose import of scipy.stats and scikit-learn takes a second."""

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from types import ModuleType

MODULE, PACKAGES = "nltk.tokenize.destructive", ("nltk", "nltk.tokenize")
_ALONE = Lock()


def treebank_tokenizer() -> Callable[[str], list[str]]:
    """The function text -> words and punctuation, as nltk.word_tokenize splits a sentence."""
    with _ALONE:
        module = import_module(MODULE) if "nltk" in sys.modules else _import_alone()
    return module.NLTKWordTokenizer().tokenize


def _import_alone() -> ModuleType:
    """The module, while packages that import nothing stand in for its own; who imports nltk later has all of it."""
    folder = Path(find_spec("nltk").origin).parent
    for name in PACKAGES:
        sys.modules[name] = stand_in = ModuleType(name)
        stand_in.__path__ = [str(folder.joinpath(*name.split(".")[1:]))]
    try:
        module = import_module(MODULE)
    except (ImportError, AttributeError):  # this nltk needs more of itself
        module = None
    for name in [name for name in sys.modules if name.partition(".")[0] == "nltk"]:
        del sys.modules[name]
    return module or import_module(MODULE)
