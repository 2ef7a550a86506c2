"""A sentence in the joint space, from text.onnx and vocabulary.json beside this file: python consume.py "two dogs"."""

import json
import re
import sys
import unicodedata
from pathlib import Path

import numpy as np
import onnxruntime


class ExportedText:
    """What `jointspace export --to onnx` wrote into `folder`."""

    def __init__(self, folder: Path) -> None:
        known = json.loads((folder / "vocabulary.json").read_text(encoding="utf-8"))
        self.settings, self.lemmas = known["settings"], known["lemmas"]
        self.stop_words = set(self.settings["stop_words"])
        self.columns = {term: at for at, term in enumerate(known["terms"])}
        self.session = onnxruntime.InferenceSession(str(folder / "text.onnx"), providers=["CPUExecutionProvider"])

    def embed(self, text: str) -> np.ndarray:
        """(c,) float32, the text in the joint space."""
        text = unicodedata.normalize("NFKC", text)
        words = re.findall(r"[^\W_]+(?:['’][^\W_]+)*", text.lower() if self.settings["lowercase"] else text)
        words = [self.lemmas.get(word, word) for word in words if word.lower() not in self.stop_words]
        words = [word for word in words if word.lower() not in self.stop_words]
        lengths = range(1, self.settings["max_ngram"] + 1)
        counts = np.zeros((1, len(self.columns)), np.float32)
        for term in (" ".join(words[i : i + n]) for n in lengths for i in range(len(words) - n + 1)):
            if term in self.columns:
                counts[0, self.columns[term]] += 1
        return self.session.run(None, {"counts": counts})[0][0]


if __name__ == "__main__":
    print(json.dumps(ExportedText(Path(__file__).parent).embed(sys.argv[1]).tolist()))
