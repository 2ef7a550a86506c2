"""Writes true captions, short and long, about the things in a scene.

The functions for whole captions come first. The functions for noun phrases, verb phrases, and phrases of place and time
follow. If a function returns a phrase together with its relation to another word, the result is a pair (name of the
relation in Universal Dependencies, phrase).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pipeline.demo import words
from pipeline.demo.picture import Facts, Relation
from pipeline.demo.scene import Thing, pick, pick_usual, pick_weighted
from pipeline.demo.words import HEAD, DemoSentence, Node, Phrase, Word, capitalised, phrase

SENTENCES = 5
"""Number of captions per image."""
CAPITAL = 0.93
"""Probability that a caption begins with a capital, as in Flickr8k."""
FULL_STOP = 0.9
"""Probability that a caption ends with a full stop, as in Flickr8k."""
ATTEMPTS = 5
"""Maximum number of attempts per caption. Captions are written until SENTENCES of them differ, or until there are
SENTENCES * ATTEMPTS captions."""
DETAILS = (0.35, 0.75, 0.95)
"""The possible probabilities with which a size or colour is mentioned. One of these probabilities is drawn for each
caption."""


@dataclass(frozen=True)
class Topic:
    """The topic of a caption: the `facts` about the scene, and the `thing` that the caption is about. `relation` is a
    relation of this thing to another thing, or None.

    `detail` is the probability with which a size or colour is mentioned.
    """

    facts: Facts
    thing: Thing
    relation: Relation | None
    detail: float  # one of DETAILS

    @property
    def companion(self) -> Thing | None:
        """The first thing of another kind that a caption can mention together with `thing`, or None if there is no such
        thing. Either both things are in the air, or neither of them is."""
        others = (t for t in self.facts.things if t.kind != self.thing.kind and t.airborne == self.thing.airborne)
        return next(others, None)


def write_captions(facts: Facts, rng: np.random.Generator) -> tuple[DemoSentence, ...]:
    """Write SENTENCES captions. The captions differ, unless SENTENCES * ATTEMPTS attempts give too few different
    captions."""
    new: dict[str, DemoSentence] = {}
    repeated: list[DemoSentence] = []
    for _ in range(SENTENCES * ATTEMPTS):
        sentence = say(facts, rng)
        if sentence.text in new:
            repeated.append(sentence)
        else:
            new[sentence.text] = sentence
        if len(new) == SENTENCES:
            break
    return tuple([*new.values(), *repeated][:SENTENCES])


def say(facts: Facts, rng: np.random.Generator) -> DemoSentence:
    """Write one true caption about a random thing and in a random form, or about the place if there are no things."""
    if facts.things:
        topic = _sample_topic(facts, rng)
        form = pick_weighted(rng, {form: weight for form, weight, needed in FORMS if getattr(topic, needed)})
        tree = form(topic, rng)
    else:
        tree = listed_noun_phrase(pick_usual(rng, words.VIEWS[facts.place]).split())
    if rng.random() < FULL_STOP:
        tree = phrase(tree.label, *zip(tree.relations, tree.children, strict=True), ("punct", words.STOP))
    return DemoSentence(capitalised(tree) if rng.random() < CAPITAL else tree)


def _sample_topic(facts: Facts, rng: np.random.Generator) -> Topic:
    number = 0 if rng.random() < 0.6 else int(rng.integers(len(facts.things)))
    relations = [relation for relation in facts.relations if relation.subject == number]
    relation = pick(rng, relations) if relations else None
    return Topic(facts, facts.things[number], relation, detail=pick(rng, DETAILS))


def _label(topic: Topic, rng: np.random.Generator) -> Phrase:
    """Write a caption without a place, such as `a red dog running` or `a red dog`."""
    subject = noun_phrase(topic.thing, rng, 0.95)
    if rng.random() < 0.3:
        return subject
    verb = verb_phrase(topic.thing.action, topic.thing.count > 1, [], rng, finite=False)
    return phrase("NP", (HEAD, subject), ("acl", verb))


def _fragment(topic: Topic, rng: np.random.Generator) -> Phrase:
    """Write a caption such as `a red dog running on the grass` or, without a verb, `a red dog on the grass`."""
    subject = noun_phrase(topic.thing, rng, topic.detail)
    if rng.random() < 0.35:
        return phrase("NP", (HEAD, subject), *map(of_noun, _adjuncts(topic, rng, moving=False)))
    verb = verb_phrase(topic.thing.action, topic.thing.count > 1, _adjuncts(topic, rng), rng, finite=False)
    return phrase("NP", (HEAD, subject), ("acl", verb))


def _statement(topic: Topic, rng: np.random.Generator) -> Phrase:
    """Write a sentence such as `a red dog runs next to a tree on the grass`."""
    return _clause(topic, _adjuncts(topic, rng), rng)


def _fronted(topic: Topic, rng: np.random.Generator) -> Phrase:
    """Write a sentence that begins with the place, such as `on the grass , a red dog runs next to a tree`."""
    first = place_phrase(topic.facts, topic.thing, rng, moving=True)
    later = [relation_phrase(topic.facts, topic.relation, rng, topic.detail)] if topic.relation else []
    clause = _clause(topic, later, rng)
    return phrase("S", first, ("punct", words.COMMA), *zip(clause.relations, clause.children, strict=True))


def _existence(topic: Topic, rng: np.random.Generator) -> Phrase:
    """Write a sentence with `there is` or `there are`, such as `there is a red dog next to a tree`."""
    several = topic.thing.count > 1
    verb = Word("are", "be", "VERB", "VBP") if several else Word("is", "be", "VERB", "VBZ")
    subject = noun_phrase(topic.thing, rng, topic.detail)
    rest = phrase("VP", (HEAD, verb), ("nsubj", subject), *_adjuncts(topic, rng, moving=False))
    return phrase("S", ("expl", phrase("NP", (HEAD, words.THERE))), (HEAD, rest))


def _position(topic: Topic, rng: np.random.Generator) -> Phrase:
    """Write a sentence about the topic's relation, such as `a red dog is next to a tree`."""
    assert topic.relation is not None  # FORMS requires a topic with a relation for this form.
    _, where = relation_phrase(topic.facts, topic.relation, rng, topic.detail)
    state = phrase("VP", ("cop", words.ARE if topic.thing.count > 1 else words.IS), (HEAD, where))
    return phrase("S", ("nsubj", noun_phrase(topic.thing, rng, topic.detail)), (HEAD, state))


def _pair(topic: Topic, rng: np.random.Generator) -> Phrase:
    """Write a caption about the topic's thing and its companion, such as `a red dog and a boy on the grass`."""
    assert topic.companion is not None  # FORMS requires a topic with a companion for this form.
    first = noun_phrase(topic.thing, rng, topic.detail)
    second = noun_phrase(topic.companion, rng, topic.detail)
    return phrase("NP", (HEAD, joined(first, second)), *map(of_noun, _scenery(topic, rng, moving=False)))


def _meanwhile(topic: Topic, rng: np.random.Generator) -> Phrase:
    """Write a sentence about the topic's thing and its companion, such as `a red dog runs while a boy sits on the
    grass`."""
    assert topic.companion is not None  # FORMS requires a topic with a companion for this form.
    other = Topic(topic.facts, topic.companion, None, topic.detail)
    clause = phrase("SBAR", ("mark", words.WHILE), (HEAD, _clause(other, _scenery(other, rng), rng)))
    return _clause(topic, [("advcl", clause)], rng)


def _view(topic: Topic, rng: np.random.Generator) -> Phrase:
    """Write a caption that begins with the place as a view, such as `a grassy field with a red dog at sunset`."""
    view = listed_noun_phrase(pick_usual(rng, words.VIEWS[topic.facts.place]).split())
    inside = noun_phrase(topic.thing, rng, topic.detail)
    if topic.companion and rng.random() < 0.4:
        inside = joined(inside, noun_phrase(topic.companion, rng, topic.detail))
    parts = [("nmod", phrase("PP", ("case", words.preposition("with")), (HEAD, inside)))]
    return phrase("NP", (HEAD, view), *parts, *map(of_noun, _light(topic, rng)))


def _clause(topic: Topic, adjuncts: list[tuple[str, Node]], rng: np.random.Generator) -> Phrase:
    subject = noun_phrase(topic.thing, rng, topic.detail)
    verb = verb_phrase(topic.thing.action, topic.thing.count > 1, adjuncts, rng, finite=True)
    return phrase("S", ("nsubj:pass" if "aux:pass" in verb.relations else "nsubj", subject), (HEAD, verb))


def _adjuncts(topic: Topic, rng: np.random.Generator, *, moving: bool = True) -> list[tuple[str, Node]]:
    """Return one to three phrases about the topic's relation to another thing, about place and light, or about both, as
    pairs (name of the relation to a verb, phrase). If `moving` is true, the place may be a path such as `across a
    field`."""
    if topic.relation is None or rng.random() < 0.35:
        return _scenery(topic, rng, moving=moving)
    related = relation_phrase(topic.facts, topic.relation, rng, topic.detail)
    return [related, *_scenery(topic, rng, moving=moving)] if rng.random() < 0.5 else [related]


def _scenery(topic: Topic, rng: np.random.Generator, *, moving: bool = True) -> list[tuple[str, Node]]:
    """Return a phrase of place, and perhaps a phrase of light such as `at sunset` unless it is day, as pairs (name of
    the relation to a verb, phrase). If `moving` is true, the place may be a path such as `across a field`."""
    return [place_phrase(topic.facts, topic.thing, rng, moving=moving), *_light(topic, rng)]


def _light(topic: Topic, rng: np.random.Generator) -> list[tuple[str, Node]]:
    """Return a list with one pair (name of the relation to a verb, phrase), whose phrase is like `at sunset`, or an
    empty list. By day, the list is always empty, and at other times it is empty by chance."""
    said = topic.facts.light != "day" and rng.random() < 0.45
    return [located(pick_usual(rng, words.LIGHT_WORDS[topic.facts.light]))] if said else []


FORMS: tuple[tuple[Callable[[Topic, np.random.Generator], Phrase], float, str], ...] = (
    (_label, 1.0, "thing"),
    (_fragment, 2.5, "thing"),
    (_statement, 4.0, "thing"),
    (_fronted, 0.8, "thing"),
    (_existence, 0.8, "thing"),
    (_position, 0.8, "relation"),
    (_pair, 1.0, "companion"),
    (_meanwhile, 0.8, "companion"),
    (_view, 0.8, "thing"),
)
"""The forms of captions. Each entry has the function that writes captions of the form, the relative frequency of the
form, and the name of an attribute of Topic. The form is used only if this attribute is not None."""


# --- the parts of a sentence


def noun_phrase(thing: Thing, rng: np.random.Generator, detail: float) -> Phrase:
    """Return a noun phrase such as `a small red dog` or `two men in blue shirts`. The size and the colour are each
    mentioned with the probability `detail`, but a medium size is never mentioned."""
    head = words.noun(_noun_lemma(thing, rng), thing.count > 1)
    adjectives = []
    if words.SIZE_WORDS[thing.size] and rng.random() < detail:
        adjectives.append(words.adjective(pick_usual(rng, words.SIZE_WORDS[thing.size])))
    coloured = rng.random() < detail
    if coloured and thing.kind not in words.GARMENTS:
        adjectives.append(words.adjective(thing.colour))
    modifiers = [("amod", word) for word in adjectives]
    if thing.count > 1:
        determiner = ("nummod", words.NUMBERS[thing.count])
    else:
        determiner = ("det", words.THE if rng.random() < 0.08 else words.article((adjectives or [head])[0]))
    core = phrase("NP", determiner, *modifiers, (HEAD, head))
    if coloured and thing.kind in words.GARMENTS:
        return phrase("NP", (HEAD, core), _wearing(thing, rng))
    return core


def _noun_lemma(thing: Thing, rng: np.random.Generator) -> str:
    nouns = words.NOUNS[thing.kind]
    if thing.size == "small" and nouns.small and rng.random() < 0.5:
        return pick(rng, nouns.small)
    return pick_usual(rng, nouns.usual)


def _wearing(thing: Thing, rng: np.random.Generator) -> tuple[str, Phrase]:
    """Return a pair (relation, phrase). The phrase describes the clothes of the person `thing`, such as `in a red
    shirt` or `wearing a red shirt`. The relation is the name of the phrase's relation to the noun for the person.

    The garment is drawn from the garments of this kind of person, and has the colour of `thing`.
    """
    garment = words.noun(pick_usual(rng, words.GARMENTS[thing.kind]), thing.count > 1)
    colour = words.adjective(thing.colour)
    first = () if thing.count > 1 else (("det", words.article(colour)),)
    clothes = phrase("NP", *first, ("amod", colour), (HEAD, garment))
    if rng.random() < 0.7:
        return "nmod", phrase("PP", ("case", words.preposition("in")), (HEAD, clothes))
    return "acl", phrase("VP", (HEAD, Word("wearing", "wear", "VERB", "VBG")), ("obj", clothes))


def verb_phrase(
    action: str, several: bool, adjuncts: list[tuple[str, Node]], rng: np.random.Generator, *, finite: bool
) -> Phrase:
    """Return a phrase such as `runs on the grass` or `is running on the grass`, or `running on the grass` if `finite`
    is false.

    `action` is a key of `words.VERBS`, such as `run`. `several` says whether the subject is a plural. `adjuncts` has
    the phrases that follow, here `on the grass`, as pairs (name of the relation to the verb, phrase). An adverb may be
    put before these phrases.
    """
    verb = pick_usual(rng, words.VERBS[action])
    if action in words.ADVERBS and rng.random() < 0.12:
        adjuncts = [("advmod", phrase("ADVP", (HEAD, words.adverb(pick_usual(rng, words.ADVERBS[action]))))), *adjuncts]
    if finite and verb.third and rng.random() < 0.55:
        form = Word(verb.lemma, verb.lemma, "VERB", "VBP") if several else Word(verb.third, verb.lemma, "VERB", "VBZ")
        return phrase("VP", (HEAD, form), *adjuncts)
    participle = Word(verb.participle, verb.lemma, "VERB", "VBG" if verb.third else "VBN")
    core = phrase("VP", (HEAD, participle), *adjuncts)
    auxiliary = "aux" if verb.third else "aux:pass"
    return phrase("VP", (auxiliary, words.ARE if several else words.IS), (HEAD, core)) if finite else core


def relation_phrase(facts: Facts, relation: Relation, rng: np.random.Generator, detail: float) -> tuple[str, Node]:
    """Return a pair (name of the relation to a verb, phrase). The phrase is like `next to a tree` or `in front of a
    house`. The size and the colour of the other thing are each mentioned with the probability `detail`."""
    other = noun_phrase(facts.things[relation.other], rng, detail)
    expression = pick_usual(rng, words.RELATION_WORDS[relation.name]).split()
    if len(expression) == 1:
        return "obl", phrase("PP", ("case", words.preposition(expression[0])), (HEAD, other))
    if expression[-1] == "to":
        goal = phrase("PP", ("case", words.preposition("to")), (HEAD, other))
        return "advmod", phrase("ADVP", (HEAD, words.adverb(expression[0])), ("obl", goal))
    first, *middle, last = expression
    side = [("det", words.THE)] * (len(middle) - 1) + [(HEAD, words.noun(middle[-1]))]
    whole = phrase("PP", ("case", words.preposition(last)), (HEAD, other))
    place = phrase("NP", (HEAD, phrase("NP", *side)), ("nmod", whole))
    return "obl", phrase("PP", ("case", words.preposition(first)), (HEAD, place))


def place_phrase(facts: Facts, thing: Thing, rng: np.random.Generator, *, moving: bool) -> tuple[str, Node]:
    """Return a phrase of place for `thing` as a pair (name of the relation to a verb, phrase). If `moving` is true and
    the thing runs or drives, the phrase may name the path of the thing, such as `across a field`."""
    if thing.airborne:
        return located(pick_usual(rng, words.SKY_WORDS[facts.place]))
    if moving and thing.action in ("run", "drive") and rng.random() < 0.5:
        return located(pick_usual(rng, words.PATH_WORDS[facts.place]))
    texts = words.PLACE_WORDS[facts.place]
    if thing.kind in facts.seated:  # Phrases such as `on the grass` are wrong for a thing that sits on a bench.
        texts = tuple(text for text in texts if not text.startswith("on "))
    return located(pick_usual(rng, texts))


def located(text: str) -> tuple[str, Node]:
    """Parse a text from a table of the module `words`: a preposition and a noun phrase, such as `on the grass`, or an
    adverb, such as `indoors`. Return a pair (name of the relation to a verb, phrase)."""
    first, *rest = text.split()
    if not rest:
        return "advmod", phrase("ADVP", (HEAD, words.adverb(first)))
    return "obl", phrase("PP", ("case", words.preposition(first)), (HEAD, listed_noun_phrase(rest)))


def listed_noun_phrase(tokens: list[str]) -> Phrase:
    """Parse the words `tokens` of a noun phrase such as `a city/NN street`. The last word is a plural noun if it ends
    with `/NNS`, and otherwise a singular noun. Each word before the last word is an article, a noun if it ends with
    `/NN`, or otherwise an adjective."""
    parts = []
    for token in tokens[:-1]:
        form, _, tag = token.partition("/")
        if form in ("a", "an", "the"):
            parts.append(("det", Word(form, "the" if form == "the" else "a", "DET", "DT")))
        else:
            parts.append(("compound", words.noun(form)) if tag == "NN" else ("amod", words.adjective(form)))
    form, _, tag = tokens[-1].partition("/")
    head = Word(form, form.removesuffix("s"), "NOUN", "NNS") if tag == "NNS" else words.noun(form)
    return phrase("NP", *parts, (HEAD, head))


def of_noun(adjunct: tuple[str, Node]) -> tuple[str, Node]:
    """Convert a pair (relation to a verb, phrase) to a pair (relation to a noun, phrase). The relation `obl` becomes
    `nmod`, and other relations are unchanged."""
    relation, node = adjunct
    return ("nmod" if relation == "obl" else relation), node


def joined(first: Node, second: Node) -> Phrase:
    """Return a phrase such as `a dog and a cat` from two noun phrases. The word `and` depends on the second noun, as in
    Universal Dependencies."""
    return phrase("NP", (HEAD, first), ("conj", phrase("", ("cc", words.AND), (HEAD, second))))
