"""Try hyper-parameters, each replica its share: a call of the decorated function is the launch.

Needs scikit-learn.
"""

from itertools import chain, product

from sklearn.datasets import load_digits
from sklearn.model_selection import cross_val_score
from sklearn.svm import SVC

import xmp

GRID = [{"C": c, "gamma": gamma} for c, gamma in product((0.1, 1, 10), (1e-4, 1e-3, 1e-2))]


@xmp.launcher(nprocs=4)
def search(images, labels):
    """Return what this replica found: the mean accuracy of its settings."""
    mine = GRID[xmp.rank() :: xmp.world_size()]
    return [(cross_val_score(SVC(**each), images, labels, cv=3).mean(), each) for each in mine]


if __name__ == "__main__":
    images, labels = load_digits(return_X_y=True)
    found = chain.from_iterable(search(images, labels))  # a list from each replica
    for accuracy, settings in sorted(found, key=lambda each: -each[0]):
        print(f"{accuracy:.3f} {settings}")
