"""Models, which map images and sentences into one space."""
