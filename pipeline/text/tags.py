"""The Penn Treebank's parts of speech as universal ones."""

UNKNOWN = "X"
PENN_TAGS = {
    "ADJ": "AFX JJ JJR JJS",
    "ADP": "IN RP",
    "ADV": "RB RBR RBS WRB",
    "AUX": "MD",
    "CCONJ": "CC",
    "DET": "DT PDT",
    "INTJ": "UH",
    "NOUN": "NN NNS",
    "NUM": "CD",
    "PART": "POS TO",
    "PRON": "EX PRP PRP$ WDT WP WP$",
    "PROPN": "ADD NNP NNPS",
    "PUNCT": ". , : `` '' -LRB- -RRB- HYPH NFP",
    "SYM": "$ # SYM",
    "VERB": "VB VBD VBG VBN VBP VBZ",
    UNKNOWN: "FW GW LS",
}
PENN_TO_UNIVERSAL = {penn: tag for tag, group in PENN_TAGS.items() for penn in group.split()}


def universal(tag: str) -> str:
    """The universal part of speech of a Penn tag; X for any other tag."""
    return PENN_TO_UNIVERSAL.get(tag, UNKNOWN)
