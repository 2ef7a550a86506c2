"""The text side of a linear model over tf-idf vectors as an ONNX graph: from counts of terms to the joint space."""

from typing import Any

import numpy as np

from pipeline.errors import UsageError
from pipeline.text.lemmas import make_lemmatiser

OPSET, IR = 17, 9
PROBES, TOLERANCE = 16, 1e-4
"""Random queries by which a graph is compared with its model, and how far two numbers may differ."""
LEAST = 1e-30
"""A shorter vector has no unit length."""


def text_graph(asker: Any) -> tuple[bytes, dict[str, Any]]:
    """The graph of a pipeline.index.asking.Asker, and what makes counts of a text: its terms, their settings, and
    `lemmas`, the forms of its words.

    Raises UsageError for a model that is not linear in one tf-idf vector, whatever its kind, and where onnx is missing.
    """
    try:
        import onnx  # noqa: F401
        import onnxruntime
    except ImportError as error:
        raise UsageError("this needs ONNX: pip install 'jointspace[onnx]'") from error
    model, encoders = asker.model, asker.text_encoders
    name, encoder = next(iter(encoders.items()), (None, None))
    vocabulary = getattr(encoder, "vocabulary", None)
    parts = getattr(model, "directions", None)
    refused = UsageError(
        f"the text side of {asker.bundle.card['model']} is not linear in one tf-idf vector, so that it cannot be"
        " exported to ONNX; export one such as ncca"
    )
    if vocabulary is not None and vocabulary.settings.tokenizer != "words":
        raise UsageError(
            f"the tokenizer of {name} is {vocabulary.settings.tokenizer}, which is not in the exported files; export a"
            " model with text.tokenizer words"
        )
    if len(encoders) != 1 or vocabulary is None or parts is None or len(parts.u) != len(vocabulary.terms):
        raise refused
    counts = np.random.default_rng(0).integers(0, 3, (PROBES, len(vocabulary.terms))).astype(np.float32)
    counts *= np.random.default_rng(1).random(counts.shape) < 0.1
    right = model.embed_sentences({name: _weigh(counts, vocabulary)})
    power = parts.values ** np.float32(model.eigenvalue_power)
    for scale, unit in ((np.ones_like(power), False), (np.ones_like(power), True), (power, True)):
        data = _graph(vocabulary, model, scale, unit)
        session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
        found = session.run(None, {"counts": counts})[0]
        if found.shape == right.shape and np.allclose(
            found, right, atol=TOLERANCE * max(1.0, float(np.abs(right).max()))
        ):
            return data, {**vocabulary.to_dict(), "lemmas": _lemmas(vocabulary)}
    raise refused


def _weigh(counts: np.ndarray, vocabulary: Any) -> Any:
    """The tf-idf vectors of `counts` (n, terms), as the encoder makes them of texts."""
    from scipy.sparse import csr_array

    rows = counts.astype(np.float64) * np.asarray(vocabulary.idf)
    if vocabulary.normalise:
        rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), LEAST)
    return csr_array(rows.astype(np.float32))


def _graph(vocabulary: Any, model: Any, scale: np.ndarray, unit: bool) -> bytes:
    from onnx import TensorProto, checker, helper, numpy_helper

    nodes, constants = [], []
    last = "counts"

    def apply(kind: str, *constant: np.ndarray, **attributes: Any) -> None:
        nonlocal last
        names = [f"constant{len(constants) + at}" for at in range(len(constant))]
        constants.extend(map(numpy_helper.from_array, (np.asarray(one, np.float32) for one in constant), names))
        nodes.append(helper.make_node(kind, [last, *names], [out := f"v{len(nodes)}"], **attributes))
        last = out

    def to_unit() -> None:
        nonlocal last
        rows = last
        apply("ReduceL2", axes=[1], keepdims=1)
        apply("Max", np.array([LEAST]))
        nodes.append(helper.make_node("Div", [rows, last], [last := f"v{len(nodes)}"]))

    apply("Mul", vocabulary.idf)
    if vocabulary.normalise:
        to_unit()
    (steps,), (weight,) = model.text.steps, model.text.weights
    for step in steps:
        to_unit() if step == "l2" else apply("Sqrt")
    apply("Mul", np.array([weight]))
    apply("Sub", model.mean_y)
    apply("MatMul", model.directions.u)
    apply("Mul", scale)
    if unit:
        to_unit()
    sides = (("counts", len(vocabulary.terms)), (last, model.directions.u.shape[1]))
    given, made = (helper.make_tensor_value_info(one, TensorProto.FLOAT, ["n", dim]) for one, dim in sides)
    graph = helper.make_graph(nodes, "text", [given], [made], constants)
    whole = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR)
    checker.check_model(whole)
    return whole.SerializeToString()


def _lemmas(vocabulary: Any) -> dict[str, str]:
    """The vocabulary's lemmas, and what else of simplemma's English dictionary bears on it: a form -> its lemma, where
    one of both is in a term, or the lemma is a stop word."""
    if not vocabulary.settings.finds_lemmas:
        return {}
    from simplemma.strategies.dictionaries.dictionary_factory import DefaultDictionaryFactory

    forms = DefaultDictionaryFactory().get_dictionary("en")
    texts = [one.decode() if isinstance(one, bytes) else one for one in forms]
    lemmatise = make_lemmatiser(vocabulary.settings.lemmas)
    pairs = ((form, lemmatise(form)) for form in (*texts, *vocabulary.settings.lemmas))
    known, stop = vocabulary.words.intersection, set(vocabulary.settings.stop_words)
    return {form: lemma for form, lemma in pairs if lemma != form and (known((form, lemma)) or lemma.lower() in stop)}
