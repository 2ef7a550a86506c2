"""A sentence in the joint space, from text.onnx and vocabulary.json beside this file: python consume.py "two dogs"."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import onnxruntime

HERE = Path(__file__).parent
KNOWN = json.loads((HERE / "vocabulary.json").read_text(encoding="utf-8"))
SETTINGS, COLUMN = KNOWN["settings"], {term: at for at, term in enumerate(KNOWN["terms"])}
SESSION = onnxruntime.InferenceSession(str(HERE / "text.onnx"), providers=["CPUExecutionProvider"])


def embed(text: str) -> np.ndarray:
    stop = set(SETTINGS["stop_words"])
    words = re.findall(r"[^\W_]+(?:['’][^\W_]+)*", text.lower() if SETTINGS["lowercase"] else text)
    words = [KNOWN["lemmas"].get(word, word) for word in words if word.lower() not in stop]
    words = [word for word in words if word.lower() not in stop]
    lengths = range(1, SETTINGS["max_ngram"] + 1)
    counts = np.zeros((1, len(COLUMN)), np.float32)
    for term in (" ".join(words[i : i + n]) for n in lengths for i in range(len(words) - n + 1)):
        if term in COLUMN:
            counts[0, COLUMN[term]] += 1
    return SESSION.run(None, {"counts": counts})[0][0]


if __name__ == "__main__":
    print(json.dumps(embed(sys.argv[1]).tolist()))
