"""A vector of 40 elements, ids of its three buckets of 16, and the payload of it at 3 bits."""

import torch

from mqgrad.cuda_ext import reference

X = torch.linspace(-1, 1, 40)
IDS = torch.tensor([7, 8, 9])
PAYLOAD = reference.encode(X, 3, 16, False, 0)
