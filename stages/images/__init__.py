"""Stages that extract features from images, find regions in images, and finetune image encoders."""
