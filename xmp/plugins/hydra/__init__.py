"""Hydra's output folders under ``xmp run``: one for each rank."""
