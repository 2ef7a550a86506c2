"""Stages that fit or train models, embed images and captions in the joint space, and match phrases with regions."""
