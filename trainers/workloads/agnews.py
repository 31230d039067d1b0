"""``agnews-bilstm``: four topics of news by a bidirectional LSTM over words, from ``data_root``.

The files are ``train.csv`` and ``test.csv`` of the AG News corpus as Zhang et al. (2015) published it: class 1 to 4,
title and description.
"""

import collections
import csv
import dataclasses
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.optim import Adam, Optimizer

from mqgrad.checks import check_count, check_positive

from .classification import Classification, held_out_figures
from .data_files import find_folder
from .workload import Batch

CLASSES = 4
PADDING, UNKNOWN = 0, 1  # words from 2 on
_FOLDER = "ag_news_csv"
_FILES = ("train.csv", "test.csv")
_SOURCE = "ag_news_csv.tgz, the AG News corpus of Zhang et al. 2015 (train.csv, test.csv)"
_WORD = re.compile(r"[a-z0-9]+")


@dataclasses.dataclass(frozen=True, kw_only=True)
class AGNewsBiLSTM(Classification):
    """Topic of a piece of news. 2.2 million parameters by default, nine tenths of them the embedding.

    Raises:
        ValueError: an invalid setting, or a ``data_root`` without the files.
    """

    warmup_iterations: int = dataclasses.field(init=False, repr=False, default=100)
    """No setting of its own."""

    data_root: str = ""
    """Folder that holds ``ag_news_csv``, or the two files themselves."""
    vocabulary: int = 20_000
    """Words that are told apart: the most frequent ones of the training file."""
    length: int = 64
    """Words of title and description that are read."""
    width: int = 100
    """Size of the embedding and of the LSTM in each direction."""
    learning_rate: float = 1e-3
    evaluation_texts: int = 2000
    """How many texts of the test file an evaluation reads; 7,600 for all of them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count(
            vocabulary=self.vocabulary,
            length=self.length,
            width=self.width,
            evaluation_texts=self.evaluation_texts,
        )
        check_positive(learning_rate=self.learning_rate)
        self._folder()  # fails here, before any worker has started

    @property
    def name(self) -> str:
        return "agnews-bilstm"

    def build_model(self) -> nn.Module:
        return BiLSTM(vocabulary=self.vocabulary + 2, width=self.width, classes=CLASSES)

    def build_optimizer(self, model: nn.Module) -> Optimizer:
        return Adam(model.parameters(), lr=self.learning_rate)

    def batches(self, rank: int, world_size: int, seed: int) -> Iterator[Batch]:
        """Word numbers int64 [batch_size, length], padded with 0; classes int64 [batch_size], 0 to 3."""
        words, classes = self._load().train
        order = self.batch_indices(classes, rank, world_size, seed)
        return ((words[i].long(), classes[i]) for i in order)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """``loss`` (nats) and ``accuracy`` on texts of the test file."""
        words, classes = (part[: self.evaluation_texts] for part in self._load().test)
        return held_out_figures(model, (part.long() for part in words.split(100)), classes)

    def _folder(self) -> Path:
        return find_folder(self.name, self.data_root, _FOLDER, _FILES, _SOURCE)

    def _load(self) -> "AGNewsData":
        return load_agnews(self._folder(), self.vocabulary, self.length)


class BiLSTM(nn.Module):
    """Logits float32 [N, classes] for words int64 [N, T]: the largest hidden state of every unit over the text."""

    def __init__(self, *, vocabulary: int, width: int, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=PADDING)
        self.layers = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.output = nn.Linear(2 * width, classes)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        lengths = (words != PADDING).sum(dim=1).clamp(min=1)
        packed = pack_padded_sequence(
            self.embedding(words), lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        hidden, _ = self.layers(packed)
        states, _ = pad_packed_sequence(hidden, batch_first=True, padding_value=float("-inf"))
        return self.output(states.amax(dim=1))


@dataclasses.dataclass(frozen=True)
class AGNewsData:
    """Word numbers int32 [N, length], classes int64 [N] from 0."""

    train: Batch
    test: Batch


@functools.cache
def load_agnews(folder: Path, vocabulary: int, length: int) -> AGNewsData:
    """Read both files; the vocabulary is that of the training file.

    Raises:
        ValueError: naming file and line that are not class, title and description.
    """
    train, test = (read_texts(folder / file) for file in _FILES)
    counts = collections.Counter(word for text in train for word in text.words)
    numbers = {word: i for i, (word, _) in enumerate(counts.most_common(vocabulary), start=UNKNOWN + 1)}
    return AGNewsData(train=_number(train, numbers, length), test=_number(test, numbers, length))


@dataclasses.dataclass(frozen=True, slots=True)
class Text:
    """One line of a file."""

    topic: int
    """1 to 4."""
    words: list[str]


def read_texts(path: Path) -> list[Text]:
    """Read a file of AG News; words are lower-case letters and digits.

    Raises:
        ValueError: naming the file and the line.
    """
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.reader(file)
        try:
            texts = [_parse(row) for row in reader]
        except (ValueError, csv.Error) as error:
            raise ValueError(
                f'{str(path)!r}, line {reader.line_num}: {error}; expected "class","title","description"'
            ) from error
    if not texts:
        raise ValueError(f"{str(path)!r} is empty: get {_SOURCE} anew")
    return texts


def _parse(row: list[str]) -> Text:
    if len(row) != 3:
        raise ValueError(f"{len(row)} columns")
    topic = int(row[0])
    if not 1 <= topic <= CLASSES:
        raise ValueError(f"class {topic} is not 1 to {CLASSES}")
    return Text(topic, _WORD.findall(f"{row[1]} {row[2]}".lower()))


def _number(texts: list[Text], numbers: dict[str, int], length: int) -> Batch:
    words = torch.full((len(texts), length), PADDING, dtype=torch.int32)
    for row, text in zip(words, texts, strict=True):
        known = [numbers.get(word, UNKNOWN) for word in text.words[:length]]
        row[: len(known)] = torch.tensor(known, dtype=torch.int32)
    return words, torch.tensor([text.topic - 1 for text in texts])
