"""Runs: the configuration, the file layout and the artefacts of a run, and the execution of its stages."""

from pipeline.run.run import Run
from pipeline.run.stage import Input, Inputs, Job, Names, Outside, ShardJob, Stage, outside_files, stage

__all__ = ["Input", "Inputs", "Job", "Names", "Outside", "Run", "ShardJob", "Stage", "outside_files", "stage"]
