"""Here so that pytest puts the project's folder on the path, and not this one.

The folders of the lanes are called like packages (libtpu, torch_tpu): ``import jax`` would find
them where the packages are not installed.
"""
