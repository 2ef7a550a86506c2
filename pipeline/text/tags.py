"""The Penn Treebank's parts of speech as universal ones."""

UNKNOWN = "X"
PENN_TO_UNIVERSAL: dict[str, str] = {
    "ADD": "PROPN",
    "AFX": "ADJ",
    "CC": "CCONJ",
    "CD": "NUM",
    "DT": "DET",
    "EX": "PRON",
    "FW": "X",
    "GW": "X",
    "IN": "ADP",
    "JJ": "ADJ",
    "JJR": "ADJ",
    "JJS": "ADJ",
    "LS": "X",
    "MD": "AUX",
    "NN": "NOUN",
    "NNS": "NOUN",
    "NNP": "PROPN",
    "NNPS": "PROPN",
    "PDT": "DET",
    "POS": "PART",
    "PRP": "PRON",
    "PRP$": "PRON",
    "RB": "ADV",
    "RBR": "ADV",
    "RBS": "ADV",
    "RP": "ADP",
    "TO": "PART",
    "UH": "INTJ",
    "VB": "VERB",
    "VBD": "VERB",
    "VBG": "VERB",
    "VBN": "VERB",
    "VBP": "VERB",
    "VBZ": "VERB",
    "WDT": "PRON",
    "WP": "PRON",
    "WP$": "PRON",
    "WRB": "ADV",
    "$": "SYM",
    "#": "SYM",
    "SYM": "SYM",
    **dict.fromkeys([".", ",", ":", "``", "''", "-LRB-", "-RRB-", "HYPH", "NFP"], "PUNCT"),
}


def universal(tag: str) -> str:
    """The universal part of speech of a Penn tag; X for any other tag."""
    return PENN_TO_UNIVERSAL.get(tag, UNKNOWN)
