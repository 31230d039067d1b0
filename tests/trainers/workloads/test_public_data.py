"""The workloads on public data sets, with small files written here in the public format."""

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks

from mqgrad.trainers import make_workload
from mqgrad.trainers.clusters.session import TrainingSession
from mqgrad.trainers.workloads.agnews import PADDING, UNKNOWN, load_agnews
from mqgrad.trainers.workloads.cifar import _augment
from mqgrad.trainers.workloads.cifar_files import CIFAR10, CIFAR100, load_cifar
from mqgrad.trainers.workloads.convnets import ResNet

TOPICS = ("war treaty border", "match goal team", "stocks profit shares", "software chip internet")


def write_records(path: Path, labels: list[list[int]], seed: int) -> np.ndarray:
    """Random images, brighter the higher the class, behind the label bytes of each; returns uint8 [N, 3, 32, 32]."""
    generator = np.random.default_rng(seed)
    images = generator.integers(0, 100, (len(labels), 3, 32, 32))
    images = (images + 15 * (np.array(labels)[:, -1, None, None, None] % 10)).astype(np.uint8)
    with path.open("wb") as file:
        for label, image in zip(labels, images, strict=True):
            file.write(bytes(label) + image.tobytes())
    return images


def write_cifar10(root: Path) -> Path:
    folder = root / "cifar-10-batches-bin"
    folder.mkdir()
    for seed, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        write_records(folder / f"{name}.bin", [[i % 10] for i in range(20)], seed)
    return folder


def write_cifar100(root: Path) -> Path:
    folder = root / "cifar-100-binary"
    folder.mkdir()
    for seed, name in enumerate(["train", "test"]):
        write_records(folder / f"{name}.bin", [[i % 20, i % 100] for i in range(100)], seed)
    return folder


def write_agnews(root: Path) -> Path:
    folder = root / "ag_news_csv"
    folder.mkdir()
    for name, count in (("train.csv", 80), ("test.csv", 20)):
        lines = [
            f'"{i % 4 + 1}","Title, of {i % 4}","It\'s ""{TOPICS[i % 4]}"" today"\n' for i in range(count)
        ]
        (folder / name).write_text("".join(lines))
    return folder


WRITERS: dict[str, Callable[[Path], Path]] = {
    "cifar10-cnn": write_cifar10,
    "cifar10-resnet18": write_cifar10,
    "cifar100-resnet34": write_cifar100,
    "agnews-bilstm": write_agnews,
}


def losses_of(name: str, iterations: int, root: Path, **settings: object) -> list[float]:
    workload = make_workload(name, data_root=str(root), **settings)
    torch.manual_seed(0)
    model = workload.build_model()
    optimizer = workload.build_optimizer(model)
    scheduler = workload.build_scheduler(optimizer)
    losses = []
    for batch in itertools.islice(workload.batches(0, 2, 0), iterations):
        optimizer.zero_grad()
        loss = workload.loss(model, batch)
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    figures = workload.evaluate(model)
    assert np.isfinite(figures["loss"])
    assert 0 <= figures["accuracy"] <= 1
    assert model.training
    return losses


def test_cifar10_records_are_read_as_they_were_written(tmp_path: Path) -> None:
    folder = write_cifar10(tmp_path)
    second = write_records(folder / "data_batch_2.bin", [[9 - i] for i in range(10)], seed=7)
    data = load_cifar(folder, CIFAR10)
    images, labels = data.train
    assert images.shape == (90, 3, 32, 32)
    assert torch.equal(images[20:30], torch.from_numpy(second))
    assert labels[20:30].tolist() == list(range(9, -1, -1))
    standardised = data.standardise(images)
    assert standardised.mean().abs() < 0.2
    assert standardised.std() == pytest.approx(1, abs=0.2)


def test_cifar100_takes_the_fine_label(tmp_path: Path) -> None:
    _, labels = load_cifar(write_cifar100(tmp_path), CIFAR100).test
    assert labels.tolist() == list(range(100))


def test_crops_are_parts_of_the_image_and_half_are_mirrored() -> None:
    image = torch.arange(3 * 6 * 6, dtype=torch.uint8).view(1, 3, 6, 6)
    parts = [image[0, :, i : i + 4, j : j + 4] for i in range(3) for j in range(3)]
    allowed = {part.numpy().tobytes() for whole in parts for part in (whole, whole.flip(2).contiguous())}
    crops = _augment(image.expand(300, -1, -1, -1), 4, 0, torch.Generator().manual_seed(0))
    assert {crop.numpy().tobytes() for crop in crops} == allowed
    mirrored = (crops[:, 0, 0, 0] > crops[:, 0, 0, 1]).float().mean()
    assert 0.35 < mirrored < 0.65


@pytest.mark.parametrize(
    ("name", "millions"),
    [("cifar10-cnn", 16.2), ("cifar10-resnet18", 11.2), ("cifar100-resnet34", 21.3), ("agnews-bilstm", 2.2)],
)
def test_models_have_the_size_of_the_papers_and_take_a_batch(
    name: str, millions: float, tmp_path: Path
) -> None:
    WRITERS[name](tmp_path)
    workload = make_workload(name, data_root=str(tmp_path), batch_size=2)
    model = workload.build_model()
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, abs=0.07)
    loss = workload.loss(model, next(workload.batches(0, 2, 0)))
    assert loss.item() < 20


def test_cifar10_cnn_bears_the_authors_rate(tmp_path: Path) -> None:
    losses = losses_of("cifar10-cnn", 5, write_cifar10(tmp_path), batch_size=16)
    assert min(losses) < 2.25
    assert max(losses) < 4


def test_l2_is_on_the_fully_connected_layers_alone(tmp_path: Path) -> None:
    workload = make_workload("cifar10-cnn", data_root=str(write_cifar10(tmp_path)))
    model = workload.build_model()
    groups = workload.build_optimizer(model).param_groups
    assert [group["weight_decay"] for group in groups] == [0.00175, 0.0]
    assert [tuple(p.shape) for p in groups[0]["params"]] == [(2304, 3136), (3840, 2304)]
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))


def test_a_narrow_resnet_learns_brightness() -> None:
    torch.manual_seed(0)
    model = ResNet((1, 1), classes=2, width=4)
    labels = torch.arange(16) % 2
    images = torch.randn(16, 3, 32, 32) + labels.view(-1, 1, 1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]


def test_agnews_words_are_numbered_by_frequency_in_the_training_file(tmp_path: Path) -> None:
    folder = write_agnews(tmp_path)
    (folder / "train.csv").write_text('"3","B a","a C-c ""a"""\n"1","","c"\n')
    (folder / "test.csv").write_text('"4","c","zebra, A\\b"\n')
    data = load_agnews(folder, vocabulary=3, length=5)
    a, c, b = 2, 3, 4  # three times, three times but later, once
    assert data.train[0].tolist() == [[b, a, a, c, c], [c, *[PADDING] * 4]]
    assert data.train[1].tolist() == [2, 0]
    assert data.test[0].tolist() == [[c, UNKNOWN, a, b, PADDING]]


def test_agnews_learns_the_topics(tmp_path: Path) -> None:
    losses = losses_of(
        "agnews-bilstm", 120, write_agnews(tmp_path), width=24, batch_size=16, learning_rate=0.01
    )
    assert losses[0] > 1.2
    assert losses[-1] < 0.3


def test_padding_does_not_change_the_answer(tmp_path: Path) -> None:
    model = make_workload("agnews-bilstm", data_root=str(write_agnews(tmp_path)), width=8).build_model()
    words = torch.tensor([[5, 6, 7], [8, 0, 0]])
    torch.testing.assert_close(model(words)[1:], model(words[1:, :1]))


@pytest.mark.parametrize(("name", "classes", "of_each"), [("cifar10-cnn", 10, 10), ("agnews-bilstm", 4, 20)])
def test_classes_may_be_unequally_often_on_ranks(
    name: str, classes: int, of_each: int, tmp_path: Path
) -> None:
    root = str(WRITERS[name](tmp_path))
    workload = make_workload(name, data_root=root, batch_size=classes * of_each // 2, dirichlet_alpha=1e-6)
    counts = [torch.bincount(next(workload.batches(rank, 2, 0))[1], minlength=classes) for rank in range(2)]
    assert torch.equal(counts[0] + counts[1], torch.full([classes], of_each))
    assert min(int(c.max() - c.min()) for c in counts) == of_each  # has a class alone, and lacks one


@pytest.mark.parametrize("name", sorted(WRITERS))
def test_without_data_the_remedy_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"'{name}' needs data_root.*--data-root"):
        make_workload(name)
    folder = WRITERS[name](tmp_path)
    removed = sorted(folder.iterdir())[-1]
    removed.unlink()
    with pytest.raises(ValueError, match=rf"has no file {folder.name}/{removed.name}.*: get .* and unpack"):
        make_workload(name, data_root=str(tmp_path))


def test_damaged_cifar_files_are_named(tmp_path: Path) -> None:
    folder = write_cifar10(tmp_path)
    write_records(folder / "data_batch_3.bin", [[200]], seed=0)
    with pytest.raises(ValueError, match=r"data_batch_3.bin' has label 200, but there are 10 classes"):
        load_cifar(folder, CIFAR10)
    (folder / "data_batch_3.bin").write_bytes(b"x" * 3000)
    with pytest.raises(ValueError, match=r"data_batch_3.bin' has 3000 bytes, not a multiple of the 3073"):
        load_cifar(folder, CIFAR10)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('"7","a","b"\n', "class 7 is not 1 to 4"),
        ("1,b\n", "2 columns"),
        ("x,a,b\n", "line 2: invalid literal"),
    ],
)
def test_a_damaged_line_of_agnews_is_named(line: str, message: str, tmp_path: Path) -> None:
    folder = write_agnews(tmp_path)
    (folder / "train.csv").write_text('"1","a","b"\n' + line)
    with pytest.raises(ValueError, match=rf"train.csv', line 2: .*{message.removeprefix('line 2: ')}"):
        load_agnews(folder, vocabulary=10, length=4)


def test_the_whole_of_mqgrad_as_published_runs(tmp_path: Path) -> None:
    """Its model, agent, quantizer and single server, on two real ranks."""
    settings = {"data_root": str(write_cifar10(tmp_path).parent), "batch_size": 2, "evaluation_images": 10}

    def rank_main(rank: int) -> tuple[list[float], float, str]:
        assert dist.group.WORLD is not None
        session = TrainingSession(make_workload("cifar10-cnn", **settings), dist.group.WORLD)
        session.reset(0, controller="mqgrad-authors:interval=1", compressor="minmax:topology=star")
        intervals = [session.run(1) for _ in range(3)]
        digest = session.digest()
        session.close()
        return [i.bits for i in intervals], intervals[0].statistics.wire_bytes, digest

    results = run_ranks(rank_main, timeout=120)
    (widths, wire_bytes, _), (other_widths, _, _) = results
    assert results[0][2] == results[1][2]
    assert widths == other_widths
    assert widths[0] == 2
    assert set(widths) <= {2, 3, 4}
    coded, others = 3136 * 2304 + 2304 * 3840, 3840 * 10 + 5 * 5 * 64 * (3 + 64)
    assert wire_bytes == pytest.approx(coded * 2 / 8 + 4 * others, rel=0.03)
