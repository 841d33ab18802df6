"""The main job as a program."""
