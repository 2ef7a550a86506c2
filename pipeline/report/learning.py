"""What the training logs show: correlations, learning curves, and the effect of the ridge."""

from collections.abc import Mapping
from typing import Any

from pipeline.report.charts import Chart, Line


def draw_logs(logs: Mapping[str, Mapping[str, Any]]) -> list[Chart]:
    """Charts of the training logs, model -> log, of what the logs have numbers for."""
    return [*_ridges(logs), *_correlations(logs), *_histories(logs)]


def _ridges(logs: Mapping[str, Mapping[str, Any]]) -> list[Chart]:
    """The best recall sum on dev at every image ridge, whatever the other choices."""
    lines = []
    for name, log in logs.items():
        best: dict[float, float] = {}
        for trial in log.get("trials", ()):
            if ridge := trial.get("image_ridge"):
                best[ridge] = max(best.get(ridge, 0.0), trial["recall_sum"])
        if len(best) > 1:
            lines.append(Line(name, sorted(best.items())))
    title = "The effect of the image ridge"
    return [Chart(title, "image ridge, relative", "recall sum on dev", lines, logarithmic=True)] if lines else []


def _correlations(logs: Mapping[str, Mapping[str, Any]]) -> list[Chart]:
    """The correlation of every dimension in training and held out, a chart for each model."""
    charts = []
    for name, log in logs.items():
        if len(log.get("train_correlations", ())) > 1:
            lines = [
                Line(label, list(enumerate(log[key], start=1)))
                for label, key in (("training", "train_correlations"), ("held out", "dev_correlations"))
                if log[key]
            ]
            charts.append(Chart(f"Correlations of {name}", "dimension", "correlation", lines))
    return charts


def _histories(logs: Mapping[str, Mapping[str, Any]]) -> list[Chart]:
    """The recall sum on dev after every epoch."""
    lines = [
        Line(name, [(epoch["epoch"] + 1, epoch["dev"]) for epoch in log["history"]])
        for name, log in logs.items()
        if len(log.get("history", ())) > 1 and "dev" in log["history"][0]  # a refit is judged by nothing
    ]
    return [Chart("Learning curves", "epoch", "recall sum on dev", lines)] if lines else []
