"""``xmp.data_parallel``: a model whose gradients are averaged over the replicas.

``call`` checks the call; torch's DistributedDataParallel and torch_xla's own way do the work.
"""
