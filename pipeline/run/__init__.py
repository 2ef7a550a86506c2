"""Runs: the configuration, the file layout and the artefacts of a run, and the execution of its stages."""

from pipeline.run.layout import Artefact, Layout, Shards
from pipeline.run.run import Run, StageRun
from pipeline.run.stage import Input, Inputs, Job, Names, Outside, ShardJob, Stage, outside_files, stage

__all__ = [
    "Artefact", "Input", "Inputs", "Job", "Layout", "Names", "Outside", "Run", "ShardJob", "Shards", "Stage",
    "StageRun", "outside_files", "stage",
]  # fmt: skip
