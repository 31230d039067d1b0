"""Files of the binary version of CIFAR-10 and CIFAR-100, as https://www.cs.toronto.edu/~kriz/cifar.html offers them.

A file is a sequence of records: one label byte (CIFAR-100: a coarse and a fine one) and 3072 bytes of pixels, red,
green, blue, each row by row. The Python version is not read: it is pickle, which can run code.
"""

import dataclasses
import functools
from pathlib import Path

import numpy as np
import torch

from .workload import Batch

_PIXEL_BYTES = 3 * 32 * 32


@dataclasses.dataclass(frozen=True)
class Archive:
    """What an archive of CIFAR's binary version holds."""

    folder: str
    source: str
    train_files: tuple[str, ...]
    test_file: str
    label_bytes: int
    """Bytes before the pixels; the last of them is the class."""
    classes: int


CIFAR10 = Archive(
    folder="cifar-10-batches-bin",
    source="cifar-10-binary.tar.gz (the binary version) from https://www.cs.toronto.edu/~kriz/cifar.html",
    train_files=tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
    test_file="test_batch.bin",
    label_bytes=1,
    classes=10,
)
CIFAR100 = Archive(
    folder="cifar-100-binary",
    source="cifar-100-binary.tar.gz (the binary version) from https://www.cs.toronto.edu/~kriz/cifar.html",
    train_files=("train.bin",),
    test_file="test.bin",
    label_bytes=2,
    classes=100,
)


@dataclasses.dataclass(frozen=True)
class CIFARData:
    """Images uint8 [N, 3, 32, 32], labels int64 [N]."""

    train: Batch
    test: Batch
    mean: torch.Tensor
    """Of training pixels, by channel: float32 [3, 1, 1], as is ``deviation``."""
    deviation: torch.Tensor

    def standardise(self, images: torch.Tensor) -> torch.Tensor:
        """Bytes to float32 of mean 0 and deviation 1."""
        return (images.float() - self.mean) / self.deviation


@functools.cache
def load_cifar(folder: Path, archive: Archive) -> CIFARData:
    """Read an unpacked archive.

    Raises:
        ValueError: naming a file whose size or labels are not those of the format.
    """
    parts = [_read_records(folder / file, archive) for file in archive.train_files]
    images, labels = (torch.cat(part) for part in zip(*parts, strict=True))
    channels = [images[:, c].float() for c in range(3)]
    return CIFARData(
        train=(images, labels),
        test=_read_records(folder / archive.test_file, archive),
        mean=torch.stack([c.mean() for c in channels]).view(3, 1, 1),
        deviation=torch.stack([c.std() for c in channels]).clamp(min=1.0).view(3, 1, 1),
    )


def _read_records(path: Path, archive: Archive) -> Batch:
    data = np.fromfile(path, dtype=np.uint8)
    size = archive.label_bytes + _PIXEL_BYTES
    if len(data) == 0 or len(data) % size:
        raise ValueError(
            f"{str(path)!r} has {len(data)} bytes, not a multiple of the {size} of a record: "
            f"get {archive.source} anew"
        )
    records = torch.from_numpy(data).view(-1, size)
    labels = records[:, archive.label_bytes - 1].long()
    if int(labels.max()) >= archive.classes:
        raise ValueError(
            f"{str(path)!r} has label {int(labels.max())}, but there are {archive.classes} classes: "
            f"get {archive.source} anew"
        )
    return records[:, archive.label_bytes :].reshape(-1, 3, 32, 32), labels
