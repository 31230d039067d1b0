"""Which identity each parameter has, and which layout each DDP bucket.

DDP regroups its buckets after the first iteration, and again after a restart. So that neither changes what is sent
for a parameter, every parameter starts a scale bucket of its own and has a fixed identity: its error feedback,
its scales and its random numbers do not depend on the DDP bucket it travels in. The identity is the parameter's place
in DDP's first iteration, which a saved state tells, so that it is not loaded into a run that numbers them otherwise.
"""

import hashlib
import itertools
import warnings
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist

from ..layout import Layout
from ..tensors import bytes_of
from .active_parameters import ActiveParameters

Order = list[list[tuple[int, ...]]]
"""Shapes of parameters in the order of their keys, by the bucket that they first came in: what tells orders apart."""


_FIRST_ELEMENTS = 256
"""Of a parameter: enough to tell two initialisations apart."""


class _Bucket(NamedTuple):
    """A DDP bucket as it was last grouped."""

    ids: list[int]
    """Of its parameters, as they come."""
    order: list[int]
    """Places of its parameters in the order of the keys."""
    layout: Layout

    @property
    def device(self) -> torch.device:
        return self.layout.bucket_ids.device


class LayoutTable:
    """Gives parameters their identities, and buckets their layouts.

    Args:
        bucket_size: elements that share one scale.
        world_size: ranks among which a bucket is divided.
        rank: of them, named in errors.
    """

    def __init__(self, *, bucket_size: int, world_size: int, rank: int = 0) -> None:
        self._bucket_size = bucket_size
        self._world_size = world_size
        self.rank = rank
        self.parameters: list[torch.Tensor] = []  # by key; kept alive, so that an id is never reused
        self._keys: dict[int, int] = {}  # by id: tensors compare element by element
        self._first_ids: list[int] = []
        self._next_id = 0
        self._buckets: dict[int, _Bucket] = {}  # by index
        self._came: set[int] = set()  # of the indices, since the last bucket of an iteration
        self._is_regrouped = False  # and not all of the new buckets have come, or a state has been loaded
        self._active = ActiveParameters()
        self._order: Order = []
        self._saved_order: Order = []
        self._first = hashlib.sha256()
        self._expects_others = False
        self.parted = False
        """Whether parameters that come now may differ between ranks: a state from within a round has been loaded."""

    @property
    def first_parameters(self) -> int:
        """48 bits that depend on shape and type of each parameter, and on its first elements when it first came (of
        matrices on their signs), after construction or :meth:`expect_others`, if ranks then had to have the same; 0
        before any has come."""
        return int.from_bytes(self._first.digest()[:6], "little") if self.parameters else 0

    @property
    def numels(self) -> list[int]:
        """Elements of each parameter, by key; none of those that DDP has ceased to bring, as it was wrapped anew
        without them."""
        numels = [parameter.numel() for parameter in self.parameters]
        active = self._active.keys or set(range(len(numels)))
        return [n if key in active else 0 for key, n in enumerate(numels)]

    def mean_over_elements(self, values: Sequence[float]) -> float:
        """Mean of one value per parameter, in the order of the keys, weighted by :attr:`numels`."""
        numels = self.numels
        return sum(n * v for n, v in zip(numels, values, strict=True)) / sum(numels)

    def count_iteration(self) -> None:
        """When its last bucket comes, before that is asked for; also where buckets go without a layout."""
        self._active.count_iteration()

    def of(self, bucket: dist.GradBucket) -> tuple[Layout, list[torch.Tensor]]:
        """Return the layout of a bucket, a new object when DDP has regrouped it, and the gradients in its order.

        The order is that of the keys: DDP also reorders parameters within a bucket, and that should move nothing.

        Raises:
            TypeError: the gradients are sparse or complex.
            ValueError: parameters come in another order than in the run whose state has been loaded.
            RuntimeError: those of two models come in turn.
        """
        parameters = bucket.parameters()
        if bucket.buffer().is_sparse:
            raise TypeError(
                f"rank {self.rank}: parameters of shapes {_shapes(parameters)} have sparse gradients, which are not "
                "averaged here: construct their nn.Embedding with sparse=False"
            )
        if self._expects_others:
            self._look_again()
        ids = list(map(id, parameters))
        known = self._buckets.get(bucket.index())
        if known is None or known.ids != ids or known.device != bucket.buffer().device:
            known = self._buckets[bucket.index()] = self._grouped(ids, parameters, known)
            self._is_regrouped = True
        self._note_came(bucket)
        gradients = bucket.gradients()
        return known.layout, [gradients[i] for i in known.order]

    def _note_came(self, bucket: dist.GradBucket) -> None:
        """Where all buckets of another grouping have come: an iteration may lack those that nobody has used, the last
        one included."""
        if self._came and bucket.index() <= max(self._came):
            self._came = set()
        self._came.add(bucket.index())
        if not bucket.is_last():
            return
        are_fewer = len(self._buckets) > bucket.index() + 1  # the last ones come no more
        if (self._is_regrouped or are_fewer) and len(self._came) == bucket.index() + 1:
            self._buckets = {index: self._buckets[index] for index in self._came}
            self._note_active({key for each in self._buckets.values() for key in each.layout.keys})
            self._is_regrouped = False
        self._active.see()
        self._came = set()

    def _note_active(self, keys: set[int]) -> None:
        if not self._active.replace(keys, all_keys=set(range(len(self.parameters)))):
            raise RuntimeError(
                f"rank {self.rank}: parameters of two models come in turn, "
                f"{_shapes_text(self._shapes_of(keys))}, and {_shapes_text(self._shapes_of(self._active.keys))}: "
                "register each DistributedDataParallel with a CompressionState (a compressor, a controller) of its "
                "own, as one would forget what error feedback owes each time that it sees the other"
            )
        if self._active.takes_turns:
            warnings.warn(
                f"rank {self.rank}: parameters come in turn, {_shapes_text(self._shapes_of(keys))} now, and what "
                "error feedback owes those that stay away is forgotten each time: if they are of two models, give "
                "each of them a CompressionState (a compressor, a controller) of its own",
                RuntimeWarning,
                stacklevel=2,
            )

    def _shapes_of(self, keys: set[int]) -> list[tuple[int, ...]]:
        return _shapes([self.parameters[key] for key in sorted(keys)])

    def is_active(self, keys: Iterable[int]) -> bool:
        """Whether DDP still brings all these parameters, as far as is known."""
        return not self._active.keys or self._active.keys.issuperset(keys)

    def take_gone(self) -> set[int]:
        """Keys of parameters that DDP has ceased to bring, as it was wrapped anew without them: once."""
        return self._active.take_gone()

    def _grouped(self, ids: list[int], parameters: list[torch.Tensor], before: "_Bucket | None") -> "_Bucket":
        if any(map(torch.is_complex, parameters)):  # torch hands their gradients over in part
            raise TypeError(
                f"rank {self.rank}: some of the parameters of shapes {_shapes(parameters)} are complex, which are "
                "not averaged here: keep them as real ones, and take torch.view_as_complex of them in forward"
            )
        self._number([parameter for parameter in parameters if id(parameter) not in self._keys])
        order = sorted(range(len(ids)), key=lambda i: self._keys[ids[i]])
        keys = tuple(self._keys[ids[i]] for i in order)
        device = parameters[0].device
        if before is not None and before.layout.keys == keys and before.device == device:
            return _Bucket(ids, order, before.layout)
        numels = tuple(parameters[i].numel() for i in order)
        return _Bucket(ids, order, self._build(keys, numels, device))

    def _number(self, parameters: list[torch.Tensor]) -> None:
        """Number parameters that appear for the first time.

        DDP's first iteration has the same buckets whenever a model is wrapped with the same options. With
        ``find_unused_parameters`` it begins with the last parameters, as many as ``bucket_cap_mb`` allows; else one
        bucket has all of a dtype, the first ones first.
        """
        if not parameters:
            return
        order = [*self._order, _shapes(parameters)]
        self._check(order, self._saved_order)
        self._order = order
        for parameter in parameters:
            self._keys[id(parameter)] = len(self._keys)
            self.parameters.append(parameter)
            self._note_first(parameter)
            self._first_ids.append(self._next_id)
            self._next_id += self._scale_buckets(parameter.numel())

    def _note_first(self, parameter: torch.Tensor) -> None:
        self._first.update(f"{tuple(parameter.shape)} {parameter.dtype}".encode())
        if not self.parted:
            self._first.update(_first_bytes(parameter))

    def expect_others(self) -> None:
        """Take :attr:`first_parameters` anew when the next bucket comes: a state has been loaded, and by then the
        model of that time, too."""
        self._expects_others = True

    def _look_again(self) -> None:
        self._expects_others, self._first = False, hashlib.sha256()
        for parameter in self.parameters:
            self._note_first(parameter)
        self._buckets = {}  # their layouts tell what the first parameters were

    def _check(self, own: Order, saved: Order) -> None:
        pairs = enumerate(zip(own, saved, strict=False))  # one of them may have come further
        differing = next((pair for pair in pairs if pair[1][0] != pair[1][1]), None)
        if differing is None:
            return
        number, (now, then) = differing
        raise ValueError(
            f"rank {self.rank}: the saved state is of a run whose DDP brought parameters in another order, by which "
            f"residuals, anchors and velocities are kept: its bucket {number} had {_shapes_text(then)}, and here has "
            f"{_shapes_text(now)}. Construct DistributedDataParallel with the find_unused_parameters and "
            "bucket_cap_mb (and static_graph) that it had, for the same model; where parameters were frozen, "
            "unfrozen or added in mid-run, start with a new state, which loses what error feedback still owes"
        )

    def state_dict(self) -> Order:
        """What the keys mean, as plain types; empty before the first iteration."""
        return max(self._order, self._saved_order, key=len)  # one begins with the other

    def load_state_dict(self, state: Order) -> None:
        """Expect the order that ``state_dict`` returned.

        Raises:
            ValueError: parameters have already come in another one.
        """
        self._check(self._order, state)
        self._saved_order = state
        self._is_regrouped = True  # it may bring back what is owed by parameters that DDP no longer brings

    def _scale_buckets(self, numel: int) -> int:
        return -(-numel // self._bucket_size)

    def _build(self, keys: tuple[int, ...], numels: tuple[int, ...], device: torch.device) -> Layout:
        counts = [self._scale_buckets(n) for n in numels]
        starts = [0, *itertools.accumulate(counts[:-1])]
        shard = -(-sum(counts) // self._world_size)
        ids = torch.zeros(shard * self._world_size, dtype=torch.int64)
        for key, start, count in zip(keys, starts, counts, strict=True):
            ids[start : start + count] = torch.arange(self._first_ids[key], self._first_ids[key] + count)
        return Layout(
            keys=keys,
            numels=numels,
            offsets=tuple(start * self._bucket_size for start in starts),
            numel=len(ids) * self._bucket_size,
            shard_numel=shard * self._bucket_size,
            bucket_ids=ids.to(device),
            padding=self._padding(starts, numels).to(device),
            first_parameters=self.first_parameters,
        )

    def _padding(self, starts: list[int], numels: tuple[int, ...]) -> torch.Tensor:
        """Padding of parameters that start at these scale buckets."""
        padding = [torch.empty(0, dtype=torch.int64)]
        for start, numel in zip(starts, numels, strict=True):
            end = start * self._bucket_size + numel
            padding.append(torch.arange(end, end + -numel % self._bucket_size))
        return torch.cat(padding)


def unscaled(parameter: torch.Tensor) -> torch.Tensor:
    """What tells a parameter from another, though forward may have scaled its rows, as ``nn.Embedding(max_norm=…)``
    does those of its batch, on each rank others: of matrices signs."""
    return parameter.detach().signbit() if parameter.ndim > 1 else parameter.detach()


def _first_bytes(parameter: torch.Tensor) -> bytes:
    return bytes_of(unscaled(parameter).reshape(-1)[:_FIRST_ELEMENTS])


def _shapes(parameters: list[torch.Tensor]) -> list[tuple[int, ...]]:
    return [tuple(parameter.shape) for parameter in parameters]


def _shapes_text(shapes: list[tuple[int, ...]]) -> str:
    return f"{len(shapes)} parameters of shapes {', '.join(map(str, shapes[:3]))}{', …' * (len(shapes) > 3)}"
