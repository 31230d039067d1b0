"""Networks for CIFAR's images: MQGrad's own, and ResNets."""

import torch
from torch import nn
from torch.nn import functional as F


class MQGradCNN(nn.Module):
    """The network of MQGrad's experiments (Cui et al., ICTIR 2018), 16.2 million parameters.

    Logits float32 [N, 10] for images float32 [N, 3, 28, 28]. Kinds and sizes of the layers are the paper's. Ours, for
    want of a source: pooling over 3 × 3 with stride 2, which gives the paper's 3136 inputs of the first fully
    connected layer; the constants of the normalisation; torch's own initialisation, which bears the paper's rate of
    0.2, as He's does not.
    """

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1),
            nn.LocalResponseNorm(9, alpha=1e-3, beta=0.75),
            nn.Conv2d(64, 64, 5, padding=2),
            nn.ReLU(),
            nn.LocalResponseNorm(9, alpha=1e-3, beta=0.75),
            nn.MaxPool2d(3, stride=2, padding=1),
            nn.Flatten(),
        )
        self.hidden1 = nn.Linear(3136, 2304)
        self.hidden2 = nn.Linear(2304, 3840)
        self.output = nn.Linear(3840, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = F.relu(self.hidden1(self.features(images)))
        return self.output(F.relu(self.hidden2(hidden)))


class ResNet(nn.Module):
    """A ResNet of basic blocks for 32 × 32 images (He et al. 2016): a 3 × 3 stem without pooling, four stages.

    Logits float32 [N, classes] for images float32 [N, 3, 32, 32].

    Args:
        blocks: blocks per stage, (2, 2, 2, 2) for ResNet-18 and (3, 4, 6, 3) for ResNet-34.
        width: channels of the first stage; each further stage has twice as many at half the resolution.
    """

    def __init__(self, blocks: tuple[int, ...], *, classes: int, width: int = 64) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        layers, channels = [], width
        for stage, count in enumerate(blocks):
            for index in range(count):
                stride = 2 if stage > 0 and index == 0 else 1
                layers.append(BasicBlock(channels, width * 2**stage, stride))
                channels = width * 2**stage
        self.blocks = nn.Sequential(*layers)
        self.output = nn.Linear(channels, classes)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out")

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.output(self.blocks(self.stem(images)).mean(dim=(2, 3)))


class BasicBlock(nn.Module):
    """Two 3 × 3 convolutions added to their input, which a 1 × 1 convolution fits where the shape changes."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return F.relu(self.residual(images) + self.shortcut(images))
