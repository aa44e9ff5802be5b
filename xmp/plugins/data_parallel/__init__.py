"""``xmp.data_parallel``: a model whose gradients are averaged over the replicas.

``call`` checks the call; torch's DistributedDataParallel and torch_xla's own way do the work.

Tests: ``tests/frameworks/test_data_parallel*.py``, ``tests/xla``.
"""
