"""Parses texts with spaCy, reads parses from the files of another parser, and trains a spaCy parser."""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.errors import InputError, UsageError
from pipeline.text.dependencies import ROOT, ROOT_RELATION, UNSPECIFIED, Entry, Parse
from pipeline.text.phrase_trees import PhraseTree, universal
from pipeline.text.tree_conversions import EMPTY, Parsed, derive_dependencies, derive_phrases, fall_back
from pipeline.text.trees import letters

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.tokens import Doc


FURTHER_ROOT = "parataxis"
"""Relation of the root of a second sentence to the root of the first, if the parser splits a text into sentences."""
MAX_WORDS = 100
"""Largest number of words in a text that is parsed. Longer texts get chains in place of trees: each word is then the
head of the next word."""


def require_spacy() -> Any:
    """Import and return the module spacy. Raise UsageError, with the command that installs spaCy, if spaCy is missing.
    After the call, spaCy logs only errors."""
    try:
        import spacy
    except ImportError:
        raise UsageError(
            "parse.engine spacy needs spaCy. Install it with `pip install 'jointspace[parse]'`, or set parse.engine to"
            " files."
        ) from None
    logging.getLogger("spacy").setLevel(logging.ERROR)
    return spacy


def parse_texts(load: "Callable[[], Language]", texts: Sequence[str]) -> list[Parsed]:
    """Parse texts with a spaCy pipeline and derive their phrase trees. `load` returns the pipeline.

    The result has one entry per text, in the order of the texts. A text without words, or with more than MAX_WORDS
    words, gets chains in place of the trees (see `fall_back`), in which each word is the head of the next word.
    """
    pipeline = load()
    docs = [pipeline.make_doc(" ".join(text.split())) for text in texts]
    parses = map(_to_parse, pipeline.pipe([doc for doc in docs if 0 < len(doc) <= MAX_WORDS]))
    parsed = []
    for text, doc in zip(texts, docs, strict=True):
        if 0 < len(doc) <= MAX_WORDS:
            parse = next(parses)
            parsed.append(Parsed(parse, derive_phrases(parse), None))
        else:
            parsed.append(fall_back(text, f"more than {MAX_WORDS} words" if len(doc) else EMPTY))
    return parsed


def _to_parse(doc: "Doc") -> Parse:
    heads = [ROOT if token.head.i == token.i else token.head.i for token in doc]
    relations = [ROOT_RELATION if token.head.i == token.i else token.dep_ or UNSPECIFIED for token in doc]
    for other in [position for position, head in enumerate(heads) if head == ROOT][1:]:
        heads[other], relations[other] = heads.index(ROOT), FURTHER_ROOT
    xpos = [token.tag_ or "_" for token in doc]
    upos = [token.pos_ or universal(tag) for token, tag in zip(doc, xpos, strict=True)]
    words = [token.text for token in doc]
    spaces = [bool(token.whitespace_) for token in doc]
    return Parse(tuple(words), tuple(upos), tuple(xpos), tuple(heads), tuple(relations), tuple(spaces))


ID_COMMENT = "sent_id"
"""The key of the CoNLL-U comment with the id of a sentence."""
MAX_QUOTED_CHARACTERS = 200
"""Largest number of characters of the parser's words in a message about a mismatch."""


def sentence_keys(names: Sequence[str], first: int) -> list[list[str]]:
    """Return three ids for each sentence. A file of parses may use any of the three.

    `names` has the image name of each sentence. The sentences of an image are adjacent. The first id is `name#k`, where
    k is the number of the sentence in its image, from 0. The second id is the first id without the folders of the name.
    The third id is the number of the sentence among all sentences, from `first`.
    """
    keys = []
    before = None
    k = 0
    for number, name in enumerate(names, start=first):
        k = k + 1 if name == before else 0
        before = name
        keys.append([f"{name}#{k}", f"{name.rpartition('/')[2]}#{k}", str(number)])
    return keys


def index_parses(entries: Iterable[Entry], wanted: Collection[str], name: str) -> dict[str, Parse]:
    """Return the mapping id -> parse for the `wanted` ids. The id of a sentence is its comment sent_id. Wanted ids
    without a sentence are left out.

    `name` is the name of the file for messages. Raises InputError for a sentence without an id, a repeated id, or a
    file without sentences.
    """
    return _index(((entry.comments.get(ID_COMMENT), entry.parse) for entry in entries), wanted, name)


def index_trees(
    trees: Iterable[tuple[str | None, PhraseTree]], wanted: Collection[str], name: str
) -> dict[str, PhraseTree]:
    """Return the mapping id -> phrase tree for the `wanted` ids.

    `trees` has an id, or None, with each tree. The id of a tree without an id is its number in the file, counted from
    0. Wanted ids without a tree are left out. `name` is the name of the file for messages. Raises InputError for a
    repeated id or a file without trees.
    """
    return _index(((str(n) if key is None else key, tree) for n, (key, tree) in enumerate(trees)), wanted, name)


def _index(pairs: Iterable[tuple[str | None, object]], wanted: Collection[str], name: str) -> dict:
    index = {}
    seen = set()
    for number, (key, value) in enumerate(pairs, start=1):
        if key is None:
            raise InputError(f"{name}: sentence {number} has no comment `# {ID_COMMENT} = ...`. Add the comment.")
        if key in seen:
            raise InputError(
                f"{name}: sentence {number} has the id {key}, which an earlier sentence has too. Make the ids unique."
            )
        seen.add(key)
        if key in wanted:
            index[key] = value
    if not seen:
        raise InputError(
            f"{name} has no sentences. Name the output file of your parser in parse.conllu or parse.brackets."
        )
    return index


def match(text: str, keys: Iterable[str], parses: Mapping[str, Parse], trees: Mapping[str, PhraseTree]) -> Parsed:
    """Return the dependency tree and the phrase tree of the sentence `text` from the files of a parser.

    `parses` and `trees` map ids to trees. `keys` are the ids that the sentence may have. In each mapping, the tree of
    the first id that is found is taken. If only one of the two trees is found, the other is derived from it. If `text`
    has no letters and digits, if no tree is found, or if a tree has other letters and digits than `text`, both trees
    are substitutes from `fall_back`, and the result has the reason as `fallback`.
    """
    keys = list(keys)
    parse = next((parses[key] for key in keys if key in parses), None)
    tree = next((trees[key] for key in keys if key in trees), None)
    if not letters(text):
        return fall_back(text, EMPTY)
    if parse is None and tree is None:
        return fall_back(text, "no parse of this id")
    for parsed in (parse, tree):
        if parsed is not None and letters("".join(parsed.words)) != letters(text):
            words = " ".join(parsed.words)[:MAX_QUOTED_CHARACTERS]
            return fall_back(text, f"{len(parsed.words)} other words: {words}")
    if parse is None:
        assert tree is not None
        parse = derive_dependencies(tree)
    return Parsed(parse, derive_phrases(parse) if tree is None else tree, None)


LANGUAGE = "en"
MAX_STEPS_PER_EVALUATION = 200
"""Largest number of training steps between two evaluations on dev."""
WORDS_PER_STEP = 100
"""Approximate number of words in one of the first training steps. The number of steps between two evaluations on dev is
the number of words in the treebank divided by this number, but at most MAX_STEPS_PER_EVALUATION."""
SCORES = ("dep_uas", "dep_las", "tag_acc")
"""Names that spaCy gives to the scores of a parser: the shares of words with the right head, with the right head and
relation, and with the right tag."""


def write_corpus(parses: Sequence[Parse], path: Path) -> int:
    """Write the sentences of a treebank to a file in spaCy's training format, without empty sentences, and return the
    number of words.

    Raises InputError, which names `path.stem` as the key of parse.treebank, if no sentence has words.
    """
    require_spacy()
    from spacy.tokens import Doc, DocBin
    from spacy.vocab import Vocab

    vocab = Vocab()
    corpus = DocBin()
    for parse in parses:
        heads = [number if head == ROOT else head for number, head in enumerate(parse.heads)]
        arcs = zip(parse.heads, parse.relations, strict=True)
        relations = ["ROOT" if head == ROOT else relation for head, relation in arcs]
        if len(parse):
            words = list(parse.words)
            spaces = list(parse.spaces)
            tags = list(parse.xpos)
            corpus.add(Doc(vocab, words=words, spaces=spaces, tags=tags, heads=heads, deps=relations))
    if not len(corpus):
        raise InputError(
            f"The file of the key parse.treebank.{path.stem} has no sentence with words. Set this key to a CoNLL-U file"
            " that has sentences."
        )
    corpus.to_disk(path)
    return sum(map(len, parses))


def train(folder: Path, words: int, epochs: int, seed: int) -> Path:
    """Train a spaCy tagger and parser for at most `epochs` epochs.

    Return the folder of the pipeline with the best scores on dev.

    `folder` must have the corpora `train.spacy`, with `words` words, and `dev.spacy`, as `write_corpus` writes them.
    """
    from spacy.cli.init_config import init_config
    from spacy.cli.train import train as train_by_spacy

    config = init_config(lang=LANGUAGE, pipeline=["tagger", "parser"], optimize="efficiency", silent=True)
    config["paths"] |= {part: str(folder / f"{part}.spacy") for part in ("train", "dev")}
    config["system"]["seed"] = seed
    # With label smoothing, spaCy fails if a treebank has only one tag.
    config["components"]["tagger"]["label_smoothing"] = 0.0
    frequency = max(1, min(MAX_STEPS_PER_EVALUATION, words // WORDS_PER_STEP))
    config["training"] |= {"max_epochs": epochs, "max_steps": 0, "eval_frequency": frequency}
    config.to_disk(folder / "config.cfg")
    train_by_spacy(folder / "config.cfg", folder / "trained")
    return folder / "trained" / "model-best"


def judge(pipeline: Path, corpus: Path) -> dict[str, float]:
    """Evaluate a spaCy pipeline on a corpus that `write_corpus` has written. Return percentages by spaCy's names.

    The pipeline splits the sentences into words itself, and spaCy aligns these words with the words of the corpus.
    `dep_uas` is the percentage of words with the right head, `dep_las` with the right head and relation, and `tag_acc`
    with the right tag.
    """
    import spacy
    from spacy.training import Corpus

    loaded = spacy.load(pipeline)
    scores = loaded.evaluate(list(Corpus(corpus)(loaded)))
    return {name: round(100 * scores[name], 2) for name in SCORES}
