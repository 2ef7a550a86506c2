"""The words of the demo's captions, and the trees of the captions.

Each phrase marks one of its children as its head. Both the phrase tree and the dependency tree of a caption are derived
from its phrases.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

HEAD = "head"


@dataclass(frozen=True)
class Word:
    """A word of a tree. `upos` and `xpos` are its parts of speech in Universal Dependencies and the Penn Treebank."""

    form: str
    lemma: str
    upos: str
    xpos: str


@dataclass(frozen=True)
class Phrase:
    """A phrase with a label of the Penn Treebank, such as NP.

    One child is the head: its entry in `relations` is HEAD. The entry of every other child is the name of its relation
    to the head in Universal Dependencies. A phrase with the label "" is only in the dependency tree. In the phrase
    tree its children take its place.
    """

    label: str
    relations: tuple[str, ...]
    children: tuple["Phrase | Word", ...]


Node = Phrase | Word


def phrase(label: str, *parts: tuple[str, Node]) -> Phrase:
    """Make a phrase with a label such as NP, from (relation, child) pairs. Exactly one relation must be HEAD."""
    relations, children = zip(*parts, strict=True)
    return Phrase(label, relations, children)


def words(node: Node) -> Iterator[Word]:
    """Yield the words of a tree from left to right."""
    if isinstance(node, Word):
        yield node
    else:
        for child in node.children:
            yield from words(child)


def capitalised(tree: Phrase) -> Phrase:
    """Return a copy of a tree whose first word begins with a capital."""
    first, *others = tree.children
    if isinstance(first, Word):
        capital = replace(first, form=first.form[0].upper() + first.form[1:])
    else:
        capital = capitalised(first)
    return replace(tree, children=(capital, *others))


def brackets(node: Node) -> str:
    """Write a tree in Penn style: `(NP (DT a) (NN dog))`."""
    if isinstance(node, Word):
        return f"({node.xpos} {node.form})"
    inside = " ".join(brackets(child) for child in node.children)
    return f"({node.label} {inside})" if node.label else inside


@dataclass(frozen=True)
class DemoSentence:
    """A sentence with its tree. Its text is the words and punctuation marks, separated by single spaces."""

    tree: Phrase

    @property
    def text(self) -> str:
        return " ".join(word.form for word in words(self.tree))

    @property
    def brackets(self) -> str:
        return brackets(self.tree)

    @property
    def conllu(self) -> str:
        """The dependency tree in the format CoNLL-U: a line of ten columns for each word, without comments."""
        arcs: list[tuple[Word, int, str]] = []
        root = _attach(self.tree, arcs)
        arcs[root - 1] = (arcs[root - 1][0], 0, "root")
        rows = (
            (number, word.form, word.lemma, word.upos, word.xpos, "_", head, relation, "_", "_")
            for number, (word, head, relation) in enumerate(arcs, start=1)
        )
        return "".join("\t".join(map(str, row)) + "\n" for row in rows)


def _attach(node: Node, arcs: list[tuple[Word, int, str]]) -> int:
    """Append (word, number of its head, relation to its head) to `arcs` for each word of `node`. Return the number of
    the head word of `node`, whose entry is (word, 0, ""). The first entry of `arcs` has the number 1."""
    if isinstance(node, Word):
        arcs.append((node, 0, ""))
        return len(arcs)
    numbers = [_attach(child, arcs) for child in node.children]
    head = numbers[node.relations.index(HEAD)]
    for number, relation in zip(numbers, node.relations, strict=True):
        if relation != HEAD:
            arcs[number - 1] = (arcs[number - 1][0], head, relation)
    return head


@dataclass(frozen=True)
class Nouns:
    """The nouns for a kind of thing, such as `dog`. Nouns in `small`, such as `puppy`, are only for small things."""

    usual: tuple[str, ...]
    small: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verb:
    """The forms of a verb: `run`, `runs` (`third`) and `running`. If `third` is empty, the participle is passive and
    always follows `is` or `are` in a full sentence, as in `is parked`."""

    lemma: str
    third: str
    participle: str


NOUNS = {
    "dog": Nouns(("dog", "hound"), ("puppy",)),
    "cat": Nouns(("cat",), ("kitten",)),
    "horse": Nouns(("horse",), ("pony", "foal")),
    "sheep": Nouns(("sheep",), ("lamb",)),
    "rabbit": Nouns(("rabbit", "bunny")),
    "bird": Nouns(("bird",)),
    "duck": Nouns(("duck",), ("duckling",)),
    "man": Nouns(("man", "guy", "person")),
    "woman": Nouns(("woman", "lady", "person")),
    "boy": Nouns(("boy", "child", "kid")),
    "girl": Nouns(("girl", "child", "kid")),
    "car": Nouns(("car", "vehicle")),
    "bus": Nouns(("bus", "coach")),
    "bicycle": Nouns(("bicycle", "bike")),
    "boat": Nouns(("boat",), ("dinghy",)),
    "ball": Nouns(("ball",)),
    "kite": Nouns(("kite",)),
    "balloon": Nouns(("balloon",)),
    "tree": Nouns(("tree",), ("sapling",)),
    "house": Nouns(("house", "building"), ("cottage", "hut")),
    "bench": Nouns(("bench", "seat")),
    "tent": Nouns(("tent",)),
    "chair": Nouns(("chair", "seat")),
    "lamp": Nouns(("lamp", "light")),
}
_PLURALS = {"man": "men", "woman": "women", "person": "people", "child": "children", "sheep": "sheep"}

GARMENTS = {
    "man": ("shirt", "sweater"),
    "woman": ("dress",),
    "boy": ("shirt", "sweater", "cap"),
    "girl": ("dress",),
}
"""The garments of each kind of person. If a caption mentions the colour of a person, it gives this colour to one of
these garments."""

SIZE_WORDS = {"small": ("small", "little", "tiny"), "medium": (), "large": ("large", "big", "huge")}


def _verbs(*forms: str) -> tuple[Verb, ...]:
    """Return a verb for each of `forms`. A form has the lemma, the third person and the participle of the verb, such as
    `run runs running`."""
    return tuple(Verb(*verb.split()) for verb in forms)


VERBS = {
    "stand": _verbs("stand stands standing"),
    "run": _verbs("run runs running", "sprint sprints sprinting", "race races racing", "dash dashes dashing"),
    "jump": _verbs("jump jumps jumping", "leap leaps leaping", "hop hops hopping"),
    "sit": _verbs("sit sits sitting", "rest rests resting"),
    "sleep": _verbs("sleep sleeps sleeping", "lie lies lying", "nap naps napping", "doze dozes dozing"),
    "wave": _verbs("wave waves waving"),
    "swim": _verbs("swim swims swimming", "paddle paddles paddling"),
    "graze": _verbs("graze grazes grazing", "eat eats eating", "feed feeds feeding"),
    "fly": _verbs("fly flies flying", "soar soars soaring", "glide glides gliding"),
    "hover": _verbs("float floats floating", "hover hovers hovering"),
    "drive": _verbs("drive drives driving", "speed speeds speeding"),
    "park": (Verb("park", "", "parked"),),
    "sail": _verbs("sail sails sailing"),
    "float": _verbs("float floats floating", "drift drifts drifting"),
    "lie": _verbs("lie lies lying", "rest rests resting"),
    "bounce": _verbs("bounce bounces bouncing"),
}
ADVERBS = {
    "run": ("fast", "quickly", "away"),
    "jump": ("high", "happily"),
    "sleep": ("quietly", "peacefully"),
    "sit": ("quietly", "still"),
    "wave": ("happily",),
    "fly": ("high", "freely"),
    "bounce": ("high",),
    "drive": ("fast", "slowly"),
    "swim": ("slowly", "happily"),
    "float": ("slowly", "quietly"),
    "sail": ("slowly",),
}

PLACE_WORDS = {
    "grass": ("on the grass", "in a grassy field", "on a green lawn", "in the park", "in a field"),
    "meadow": ("in a meadow", "among the flowers/NNS", "in a flowery field", "among colorful flowers/NNS"),
    "beach": ("on the beach", "on the sand", "on a sandy beach", "near the ocean", "by the sea"),
    "street": ("on the street", "in the city", "on a city/NN street", "on the road", "in an urban street"),
    "snow": ("in the snow", "on a snowy field", "in deep snow", "on a snowy hill"),
    "lake": ("in the water", "in a lake", "in a blue lake", "in calm water"),
    "forest": ("in the woods/NNS", "in a forest", "in a dark forest", "on the forest/NN floor"),
    "room": ("in a room", "indoors", "inside", "in a living/NN room", "in a bright room"),
    "desert": ("in the desert", "on a sand/NN dune", "in a sandy desert", "on the hot sand"),
    "mountains": ("in the mountains/NNS", "on rocky ground", "near a snowy mountain", "on a rocky hillside"),
}
SKY_WORDS = {
    "grass": ("over a grassy field", "above the grass"),
    "meadow": ("over a meadow", "above the flowers/NNS"),
    "beach": ("over the beach", "above the sand", "near the ocean"),
    "street": ("over the street", "above the road", "in the city"),
    "snow": ("over a snowy field", "above the snow"),
    "lake": ("over the water", "above a lake", "over a blue lake"),
    "forest": ("in the woods/NNS", "in a forest"),
    "room": ("in a room", "indoors", "in a living/NN room"),
    "desert": ("over the desert", "above the hot sand"),
    "mountains": ("in the mountains/NNS", "over rocky ground"),
}
"""Place -> phrases that say where a thing in the air is. `listed_noun_phrase` explains the marks /NN and /NNS."""

PATH_WORDS = {
    "grass": ("through the grass", "across a field", "across the lawn"),
    "meadow": ("through a meadow", "through the flowers/NNS"),
    "beach": ("along the beach", "across the sand", "along the shore"),
    "street": ("down the street", "along a road", "through the city"),
    "snow": ("through the snow", "across a snowy field"),
    "forest": ("through the woods/NNS", "through a forest"),
    "room": ("across the room", "through a room"),
    "desert": ("across the desert", "through the sand"),
    "mountains": ("over rocky ground", "through the mountains/NNS"),
}
"""Place -> phrases for the path of a thing that runs or drives there. Nothing runs or drives on a lake."""

VIEWS = {
    "grass": ("a grassy field", "a green lawn", "a park"),
    "meadow": ("a flowery meadow", "a field"),
    "beach": ("a sandy beach", "the seaside"),
    "street": ("a city/NN street", "a road"),
    "snow": ("a snowy landscape", "a white field"),
    "lake": ("a blue lake", "calm water"),
    "forest": ("a dark forest", "the woods/NNS"),
    "room": ("a living/NN room", "a bright room"),
    "desert": ("a sandy desert", "a hot desert"),
    "mountains": ("a rocky landscape", "snowy mountains/NNS"),
}
LIGHT_WORDS = {
    "day": (),
    "sunset": ("at sunset", "at dusk", "in the evening", "under an orange sky"),
    "night": ("at night", "in the moonlight", "under the stars/NNS", "in the dark"),
}
RELATION_WORDS = {
    "next to": ("next to", "beside", "near", "by", "close to"),
    "in front of": ("in front of",),
    "behind": ("behind",),
    "above": ("above", "over"),
    "under": ("under", "below", "beneath"),
    "left of": ("to the left of", "on the left of"),
    "right of": ("to the right of", "on the right of"),
    "on": ("on", "on top of"),
}

A = Word("a", "a", "DET", "DT")
AN = Word("an", "a", "DET", "DT")
THE = Word("the", "the", "DET", "DT")
IS = Word("is", "be", "AUX", "VBZ")
ARE = Word("are", "be", "AUX", "VBP")
THERE = Word("there", "there", "PRON", "EX")
AND = Word("and", "and", "CCONJ", "CC")
WHILE = Word("while", "while", "SCONJ", "IN")
COMMA = Word(",", ",", "PUNCT", ",")
STOP = Word(".", ".", "PUNCT", ".")
NUMBERS = {2: Word("two", "two", "NUM", "CD"), 3: Word("three", "three", "NUM", "CD")}


def noun(lemma: str, several: bool = False) -> Word:
    return Word(plural(lemma), lemma, "NOUN", "NNS") if several else Word(lemma, lemma, "NOUN", "NN")


def adjective(form: str) -> Word:
    return Word(form, form, "ADJ", "JJ")


def adverb(form: str) -> Word:
    return Word(form, form, "ADV", "RB")


def preposition(form: str) -> Word:
    return Word(form, form, "ADP", "IN")


def article(following: Word) -> Word:
    """Return the article `a`, or `an` if the word `following` begins with a vowel."""
    return AN if following.form[0] in "aeiou" else A


def plural(lemma: str) -> str:
    if lemma in _PLURALS:
        return _PLURALS[lemma]
    if lemma.endswith("y") and lemma[-2] not in "aeiou":
        return lemma[:-1] + "ies"
    return lemma + ("es" if lemma.endswith(("s", "ch", "x")) else "s")


def kind_names() -> dict[str, list[str]]:
    """Return, for each kind of thing, all its nouns in singular and plural."""
    return {
        kind: [form for lemma in (*nouns.usual, *nouns.small) for form in dict.fromkeys((lemma, plural(lemma)))]
        for kind, nouns in NOUNS.items()
    }
