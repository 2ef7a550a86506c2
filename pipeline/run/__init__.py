"""A run: its configuration, its layout, its artefacts; and how a stage is mapped over its shards."""

from pipeline.run.run import Run
from pipeline.run.stage import Input, Inputs, Job, Names, Outside, Stage, outside_files, stage

__all__ = ["Input", "Inputs", "Job", "Names", "Outside", "Run", "Stage", "outside_files", "stage"]
