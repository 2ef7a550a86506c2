"""The parts of a sentence: noun phrases, verb phrases, and what says where and when."""

import numpy as np

from pipeline.demo.chance import pick, pick_usual
from pipeline.demo.facts import Facts, Relation
from pipeline.demo.scene import Thing
from pipeline.demo.trees import HEAD, Node, Phrase, Word, phrase
from pipeline.demo.words import (
    ADVERBS,
    AND,
    ARE,
    GARMENTS,
    IS,
    LIGHT_WORDS,
    NOUNS,
    NUMBERS,
    PATH_WORDS,
    PLACE_WORDS,
    RELATION_WORDS,
    SIZE_WORDS,
    SKY_WORDS,
    THE,
    VERBS,
    adjective,
    adverb,
    article,
    noun,
    preposition,
)


def noun_phrase(thing: Thing, rng: np.random.Generator, detail: float) -> Phrase:
    """`a small red dog`, `two men in blue shirts`; size and colour with probability `detail` each."""
    head = noun(_noun_lemma(thing, rng), thing.count > 1)
    adjectives = []
    if SIZE_WORDS[thing.size] and rng.random() < detail:
        adjectives.append(adjective(pick_usual(rng, SIZE_WORDS[thing.size])))
    coloured = rng.random() < detail
    if coloured and thing.kind not in GARMENTS:
        adjectives.append(adjective(thing.colour))
    core = _determined(adjectives, head, thing.count, rng)
    if coloured and thing.kind in GARMENTS:
        return phrase("NP", (HEAD, core), _wearing(thing, rng))
    return core


def _noun_lemma(thing: Thing, rng: np.random.Generator) -> str:
    nouns = NOUNS[thing.kind]
    if thing.size == "small" and nouns.small and rng.random() < 0.5:
        return pick(rng, nouns.small)
    return pick_usual(rng, nouns.usual)


def _determined(adjectives: list[Word], head: Word, count: int, rng: np.random.Generator) -> Phrase:
    modifiers = [("amod", word) for word in adjectives]
    if count > 1:
        return phrase("NP", ("nummod", NUMBERS[count]), *modifiers, (HEAD, head))
    determiner = THE if rng.random() < 0.08 else article((adjectives or [head])[0])
    return phrase("NP", ("det", determiner), *modifiers, (HEAD, head))


def _wearing(thing: Thing, rng: np.random.Generator) -> tuple[str, Phrase]:
    """`in a red shirt` or `wearing a red shirt`, with its relation to the person."""
    garment = noun(pick_usual(rng, GARMENTS[thing.kind]), thing.count > 1)
    colour = adjective(thing.colour)
    first = () if thing.count > 1 else (("det", article(colour)),)
    clothes = phrase("NP", *first, ("amod", colour), (HEAD, garment))
    if rng.random() < 0.7:
        return "nmod", phrase("PP", ("case", preposition("in")), (HEAD, clothes))
    return "acl", phrase("VP", (HEAD, Word("wearing", "wear", "VERB", "VBG")), ("obj", clothes))


def verb_phrase(
    action: str, several: bool, adjuncts: list[tuple[str, Node]], rng: np.random.Generator, *, finite: bool
) -> Phrase:
    """`runs on the grass`, `are running ...`, or, where it is not `finite`, `running ...`."""
    verb = pick_usual(rng, VERBS[action])
    if action in ADVERBS and rng.random() < 0.12:
        adjuncts = [("advmod", phrase("ADVP", (HEAD, adverb(pick_usual(rng, ADVERBS[action]))))), *adjuncts]
    if finite and verb.third and rng.random() < 0.55:
        form = Word(verb.lemma, verb.lemma, "VERB", "VBP") if several else Word(verb.third, verb.lemma, "VERB", "VBZ")
        return phrase("VP", (HEAD, form), *adjuncts)
    participle = Word(verb.participle, verb.lemma, "VERB", "VBG" if verb.third else "VBN")
    core = phrase("VP", (HEAD, participle), *adjuncts)
    auxiliary = "aux" if verb.third else "aux:pass"
    return phrase("VP", (auxiliary, ARE if several else IS), (HEAD, core)) if finite else core


def relation_phrase(facts: Facts, relation: Relation, rng: np.random.Generator, detail: float) -> tuple[str, Node]:
    """`next to a tree`, `in front of a house`, with its relation to a verb."""
    other = noun_phrase(facts.things[relation.other], rng, detail)
    expression = pick_usual(rng, RELATION_WORDS[relation.name]).split()
    if len(expression) == 1:
        return "obl", phrase("PP", ("case", preposition(expression[0])), (HEAD, other))
    if expression[-1] == "to":
        goal = phrase("PP", ("case", preposition("to")), (HEAD, other))
        return "advmod", phrase("ADVP", (HEAD, adverb(expression[0])), ("obl", goal))
    first, *middle, last = expression
    side = [("det", THE)] * (len(middle) - 1) + [(HEAD, noun(middle[-1]))]
    whole = phrase("PP", ("case", preposition(last)), (HEAD, other))
    place = phrase("NP", (HEAD, phrase("NP", *side)), ("nmod", whole))
    return "obl", phrase("PP", ("case", preposition(first)), (HEAD, place))


def place_phrase(facts: Facts, thing: Thing, rng: np.random.Generator, *, moving: bool) -> tuple[str, Node]:
    """Where `thing` is, with its relation to a verb; perhaps where it goes, if the verb says that it is `moving`."""
    if thing.airborne:
        return located(pick_usual(rng, SKY_WORDS[facts.place]))
    if moving and thing.action in ("run", "drive") and rng.random() < 0.5:
        return located(pick_usual(rng, PATH_WORDS[facts.place]))
    texts = PLACE_WORDS[facts.place]
    if thing.kind in facts.seated:  # in the place, but not on its ground
        texts = tuple(text for text in texts if not text.startswith("on "))
    return located(pick_usual(rng, texts))


def light_phrase(light: str, rng: np.random.Generator) -> tuple[str, Node]:
    """`at sunset`, with its relation to a verb; not by day, which goes without saying."""
    return located(pick_usual(rng, LIGHT_WORDS[light]))


def located(text: str) -> tuple[str, Node]:
    """`on the grass` of the tables as a phrase, with its relation to a verb; a single word is an adverb."""
    first, *rest = text.split()
    if not rest:
        return "advmod", phrase("ADVP", (HEAD, adverb(first)))
    return "obl", phrase("PP", ("case", preposition(first)), (HEAD, listed_noun_phrase(rest)))


def listed_noun_phrase(tokens: list[str]) -> Phrase:
    """`a city/NN street` as a phrase: the last word is a noun (`/NNS`: a plural), the others adjectives if untagged."""
    parts = []
    for token in tokens[:-1]:
        form, _, tag = token.partition("/")
        if form in ("a", "an", "the"):
            parts.append(("det", Word(form, "the" if form == "the" else "a", "DET", "DT")))
        else:
            parts.append(("compound", noun(form)) if tag == "NN" else ("amod", adjective(form)))
    form, _, tag = tokens[-1].partition("/")
    head = Word(form, form.removesuffix("s"), "NOUN", "NNS") if tag == "NNS" else noun(form)
    return phrase("NP", *parts, (HEAD, head))


def of_noun(adjunct: tuple[str, Node]) -> tuple[str, Node]:
    """An adjunct of a verb as one of a noun."""
    relation, node = adjunct
    return ("nmod" if relation == "obl" else relation), node


def joined(first: Node, second: Node) -> Phrase:
    """`a dog and a cat`; the conjunction belongs to the second, as Universal Dependencies has it."""
    return phrase("NP", (HEAD, first), ("conj", phrase("", ("cc", AND), (HEAD, second))))
