"""The library behind the stages: the computation of joint spaces of photos and sentences, and the storage of files."""
