"""The grids that ``mqgrad compare --grid`` names. The full comparison is all of them but ``quick``.

Durations are on 2 idle cores. Peers are at settings that suit some 100 iterations.
"""

from typing import Any

_FIXED = ("fixed:1/4", "fixed:1/2", *(f"fixed:{bits}" for bits in (1, 2, 3, 4, 6, 8, 16, 32)))
WIDE_GOODPUT = "goodput:widths=1/4+1/2+1+2+3+4+6+8+16+32"
"""The goodput rule with the widths that the packaged policy has."""
_RULES = (
    "dq-sgd:interval=5,keep=0.9",
    "gravac:interval=5,window=2",
    "adaquantfl:interval=5",
    "dadaquant:interval=5",
    "feddq:interval=5",
    "accordion:interval=5,window=3",
    "l-greco",
    "smoothness-layers",
    WIDE_GOODPUT,
    "linear-ramp:interval=5,decisions=20",
    "random-ramp:interval=5,decisions=20",
    "mqgrad-authors on minmax",
    "mqgrad-authors on minmax:topology=star",
)
_CODES = (
    "qsgd",
    "minmax",
    "terngrad",
    "onebit",
    "ecq-sgd",
    "fixed:2 on rotation",
    "top-k:0.01",
    "gravac:base=top-k,window=20,largest_factor=100",
    "dgc:ratio=0.01 with momentum=0",  # these two have momentum of their own
    "sketched-sgd:ratio=0.05 with momentum=0",
)
_PEERS = ("fp16", "powersgd:rank=1", "powersgd:rank=4", "none")
_METHODS = (
    "plain-ddp",
    "plain-ddp:hook=fp16",
    "plain-ddp:hook=powersgd,rank=1",
    "plain-ddp:hook=powersgd,rank=4",
    "no-sync",
    "local-sgd",
    "post-local-sgd:warmup=5",
    "slowmo",
    "overlap-local-sgd",
    "backup-workers",  # these two under simulated delays, which nobody else has
    "backup-workers:backups=0",
)
# Further settings, where the link is slow enough for them to differ.
_MORE_RULES = (
    "fixed:5",
    "fixed:7",
    "dq-sgd:interval=5,keep=0.9 on qsgd",  # the published code; the others run on ours
    "goodput",
    "random-ramp:interval=5,decisions=20 on minmax",  # what a learned ramp has to beat
)
_MORE_CODES = (
    "powersgd:rank=2",
    "fixed:2 on qsgd",
    "fixed:2 on ecq-sgd",
    "top-k:0.1",
    "onebit with momentum=0",
    "dgc:ratio=0.01,warmup_iterations=20 with momentum=0",
    "gravac:base=dgc,window=20,largest_factor=100 with momentum=0",
)
# What the packaged policy has not been trained on: another model size, batch size and learning rate.
_UNSEEN = ("digits-cnn:width=40", "digits-cnn:batch_size=24", "digits-cnn:learning_rate=0.04")
_ROUNDS = ("fixed:1 every 8", "fixed:4 every 8", f"{WIDE_GOODPUT} every 8", "default every 8")
_MAIN_RULES = (
    "fixed:1",
    "fixed:4",
    "fixed:32",
    WIDE_GOODPUT,
    "default",
    "dq-sgd:interval=5,keep=0.9",
    *_ROUNDS,
)
_IN_TURN = "100mbit/1gbit@0.75s"
_MAIN_PEERS = ("fp16", "powersgd:rank=4")
_MAIN_METHODS = ("plain-ddp", "plain-ddp:hook=fp16", "plain-ddp:hook=powersgd,rank=4", "no-sync", "local-sgd")

GRIDS: dict[str, dict[str, Any]] = {
    # About 7 minutes: 72 runs.
    "quick": {
        "controllers": ("default", "default every 8", "fixed:4", "fixed:32", "goodput"),
        "compressors": ("fp16", "powersgd:rank=4"),
        "methods": _MAIN_METHODS,
        "workloads": ("digits-cnn",),
        "links": ("100mbit", "1gbit"),
        "seeds": 3,
        "hosts": 2,
        "budget_seconds": "3",
    },
    # About 37 minutes: every system on one workload and a slow link, 325 runs.
    "systems": {
        "controllers": (*_FIXED, "default", *_RULES, *_MORE_RULES, *_ROUNDS),
        "compressors": (*_CODES, *_PEERS, *_MORE_CODES),
        "methods": _METHODS,
        "workloads": ("digits-cnn",),
        "links": ("100mbit",),
        "seeds": 5,
        "hosts": 4,
        "budget_seconds": "4.5",
        "settings": _UNSEEN,
    },
    # About 70 minutes: the same on faster links, one setting a system, 795 runs.
    "fast-links": {
        "controllers": (*_FIXED, "default", *_RULES, *_ROUNDS),
        "compressors": (*_CODES, *_PEERS),
        "methods": _METHODS,
        "workloads": ("digits-cnn",),
        "links": ("1gbit", _IN_TURN, "none"),
        "seeds": 5,
        "hosts": 4,
        "budget_seconds": "3.5",
        "settings": _UNSEEN,
    },
    # About 40 minutes: the main systems on all links, so that one report tells how they do on the whole; 420 runs.
    "links": {
        "controllers": (
            *("fixed:1", "fixed:4", "fixed:32", WIDE_GOODPUT, "default"),
            *(
                "dq-sgd:interval=5,keep=0.9",
                "linear-ramp:interval=5,decisions=20",
                "mqgrad-authors on minmax",
            ),
            *_ROUNDS,
            "fixed:1 every 16",
        ),
        "compressors": ("powersgd:rank=4",),
        "methods": (*_MAIN_METHODS, "slowmo", "overlap-local-sgd"),
        "workloads": ("digits-cnn",),
        "links": ("100mbit", "1gbit", _IN_TURN, "none"),
        "seeds": 5,
        "hosts": 4,
        "budget_seconds": "4",
        "settings": _UNSEEN,
    },
    # About 5 hours: the main systems on other workloads, with Adam, 680 runs.
    "workloads": {
        "controllers": _MAIN_RULES,
        "compressors": _MAIN_PEERS,
        "methods": _MAIN_METHODS,
        "workloads": ("bytes-gpt", "bytes-gpt-large", "bytes-lstm", "digits-cnn"),
        "optimizers": ("adam",),
        "links": ("100mbit", "1gbit"),
        "seeds": 5,
        "hosts": 4,
        "budget_seconds": "digits-cnn=4.5,bytes-gpt=12,bytes-lstm=10,bytes-gpt-large=60",
        "settings": (
            "bytes-gpt:evaluation_bytes=4096",
            "bytes-lstm:evaluation_bytes=4096",
            "bytes-gpt-large:evaluation_bytes=2048",
        ),
    },
    # About 27 minutes: the same on a convex problem, and the codes that know its smoothness; 420 runs.
    "logreg": {
        "controllers": _MAIN_RULES,
        "compressors": (
            *_MAIN_PEERS,
            "qsgd",
            "smoothness",
            "smoothness:shift=false",
            "smoothness:steps=uniform,blocks=4",
        ),
        "methods": _MAIN_METHODS,
        "workloads": ("logreg",),
        "links": ("100mbit", "1gbit", _IN_TURN, "none"),
        "seeds": 5,
        "hosts": 4,
        "budget_seconds": "2",
    },
}
