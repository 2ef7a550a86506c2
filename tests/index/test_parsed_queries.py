"""A query in words to a model that reads trees."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from made_up import build_bundle, features_of, make_run, run_command

from pipeline.errors import UsageError
from pipeline.index.search import Searcher
from pipeline.storage.bundle import Bundle


@pytest.mark.parametrize("view", ["dependency-trees", "phrase-trees"])
def test_a_query_in_words_is_refused_and_a_photograph_is_not(
    view: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = build_bundle(make_run(tmp_path / "run"))
    model = SimpleNamespace(
        sentence_view=view, embed_images=lambda features: np.asarray(features["colour"], np.float32)
    )
    monkeypatch.setattr(Searcher, "_model", model)
    said = f"ncca reads {view.replace('-', ' ')}, and a query in words is not parsed: search with a photograph"
    with pytest.raises(UsageError, match=said):
        run_command("search", "--index", bundle, "a dog")
    with pytest.raises(UsageError, match="or the index of a row that reads plain words"):
        Searcher(Bundle(bundle)).batch(["unicorn"], 3)
    assert "horse" in Searcher(Bundle(bundle)).sentences(features_of("horse"), 1)[0].row["text"]
