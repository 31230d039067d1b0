"""The grids that ``mqgrad compare --grid`` names. The full comparison is all of them but ``quick``.

Durations are on 2 idle cores. Peers are at settings that suit some 100 iterations.
"""

from . import tuning
from .grid import Grid

WIDE_GOODPUT = "goodput:widths=1/4+1/2+1+2+3+4+6+8+16+32"
"""The goodput rule with the widths that the packaged policy has."""
_RULES = (
    *(f"fixed:{bits}" for bits in ("1/4", "1/2", 2, 3, 6, 8, 16)),
    "gravac:interval=5,window=2",
    "adaquantfl:interval=5",
    "dadaquant:interval=5",
    "feddq:interval=5",
    "accordion:interval=5,window=3",
    "l-greco",
    "smoothness-layers",
    "dq-sgd:interval=5,keep=0.9",
    "linear-ramp:interval=5,decisions=20",
    "budget-ramp:interval=5",
    "random-ramp:interval=5,decisions=20",
    "mqgrad-authors on minmax:topology=star",
)
_CODES = (
    "qsgd",
    "minmax",
    "terngrad",
    "onebit",
    "onebit-adam:warmup_iterations=20 with momentum=0,learning_rate=0.008",  # Adam is taken in it
    "ecq-sgd",
    "fixed:2 on rotation",
    "qsgd:topology=all-gather",  # as published: every rank takes the mean of all codes
    "top-k:0.01",
    "gravac:base=top-k,window=20,largest_factor=100",
    "gravac:base=top-k,window=20,largest_factor=100,least_gain=0.5",  # the 0.7 of norms, as in the authors' code
    "dgc:ratio=0.01 with momentum=0",  # these two have momentum of their own
    "sketched-sgd:ratio=0.01 with momentum=0",
    "fp16",
    "powersgd:rank=1",
    "none",
)
_METHODS = (
    "plain-ddp:hook=powersgd,rank=1",
    "post-local-sgd:warmup=5",
    "backup-workers",  # these two under simulated delays, which nobody else has
    "backup-workers:backups=0",
)
# What the packaged policy has not been trained on: another model size, batch size and learning rate.
_UNSEEN = ("digits-cnn:width=40", "digits-cnn:batch_size=24", "digits-cnn:learning_rate=0.04")
_ROUNDS = ("fixed:1 every 8", "fixed:4 every 8", f"{WIDE_GOODPUT} every 8", "default every 8")
_MEASURED = "on quantized:topology=measured"
_TOPOLOGIES = (
    "fixed:1 on quantized:topology=all-gather",
    *(f"{controller} {_MEASURED}" for controller in ("fixed:1", WIDE_GOODPUT, "default")),
)
_DELAY_RATIO = "fixed:1,interval=5 every 8,period_rule=delay-ratio"
_ADACOMM = "fixed:1,interval=2 every 16,period_rule=adacomm:0.25"
_LINKS = ("100mbit", "1gbit", "100mbit/1gbit@0.75s", "none")
# At 100 Mbit/s fp32 is within the warm-up of its learning rate for 4 s.
_BUDGETS = {("", ""): 4.0, ("", "100mbit"): 12.0}
_LEARNED_AND_RULE = ("default", WIDE_GOODPUT)
_PYTORCHS = (
    "plain-ddp",
    "plain-ddp:batch_threads=true",
    "plain-ddp:hook=fp16",
    "plain-ddp:hook=fp16,batch_threads=true",
)
_USUAL = ("plain-ddp", "plain-ddp:hook=fp16", "local-sgd")
_MAIN_METHODS = ("plain-ddp", "plain-ddp:hook=fp16", "plain-ddp:hook=powersgd,rank=4", "no-sync", "local-sgd")

GRIDS = {
    # About 7 minutes: 72 runs.
    "quick": Grid(
        controllers=("default", "default every 8", "fixed:4", "fixed:32", "goodput"),
        compressors=("fp16", "powersgd:rank=4"),
        methods=_MAIN_METHODS,
        workloads=("digits-cnn",),
        links=("100mbit", "1gbit"),
        seeds=3,
        hosts=2,
        budget_seconds={("", ""): 3.0},
    ),
    # About an hour: the main systems on all links, so that one report tells how they do on the whole; 480 runs.
    "links": Grid(
        controllers=(
            *("fixed:1", "fixed:4", "fixed:32", WIDE_GOODPUT, "default", "mqgrad-authors on minmax"),
            *_ROUNDS,
            "default every 8,slow_momentum=0.5",
            f"default {_MEASURED} every 8",
            *_TOPOLOGIES,
        ),
        compressors=("powersgd:rank=4",),
        methods=(*_MAIN_METHODS, "slowmo", "slowmo:period=16"),
        workloads=("digits-cnn",),
        links=_LINKS,
        seeds=5,
        hosts=4,
        budget_seconds=_BUDGETS,
        settings=_UNSEEN,
    ),
    # A good two hours: every other system on the same links beside four of those; 860 runs.
    "peers": Grid(
        controllers=("fixed:1", WIDE_GOODPUT, "default", *_RULES),
        compressors=_CODES,
        methods=("plain-ddp", *_METHODS),
        workloads=("digits-cnn",),
        links=_LINKS,
        seeds=5,
        hosts=4,
        budget_seconds=_BUDGETS,
        settings=_UNSEEN,
    ),
    # About 25 minutes: further settings, where the link is slow enough for them to differ; 95 runs.
    "settings": Grid(
        controllers=(
            "fixed:1",
            "fixed:5",
            "fixed:7",
            "goodput",
            "default",
            "dq-sgd:interval=5,keep=0.9 on qsgd",  # the published code; the others run on ours
            "mqgrad-authors on minmax",
            "random-ramp:interval=5,decisions=20 on minmax",  # what a learned ramp has to beat
        ),
        compressors=(
            "powersgd:rank=2",
            "powersgd:rank=4",
            "fixed:2 on qsgd",
            "fixed:2 on qsgd:topology=all-gather",
            "fixed:2 on ecq-sgd",
            "top-k:0.1",
            "onebit with momentum=0,learning_rate=0.4",  # it has no momentum of its own: the same step
            "dgc:ratio=0.01,warmup_iterations=20 with momentum=0",
            "gravac:base=dgc,window=20,largest_factor=100 with momentum=0",
        ),
        methods=("plain-ddp", "plain-ddp:hook=powersgd,rank=2"),
        workloads=("digits-cnn",),
        links=("100mbit",),
        seeds=5,
        hosts=4,
        budget_seconds={("", ""): 12.0},
        settings=_UNSEEN,
    ),
    # About 65 minutes: what settings for comparisons are chosen from; 384 runs.
    "tuning": Grid(
        controllers=tuning.systems(tuning.CONTROLLERS),
        compressors=tuning.systems(tuning.COMPRESSORS),
        methods=tuning.systems(tuning.METHODS),
        workloads=("digits-cnn",),
        links=("100mbit", "1gbit"),
        seeds=2,
        first_seed=301,
        hosts=4,
        budget_seconds=_BUDGETS,
        settings=_UNSEEN,
    ),
    # About an hour: published systems at the best of those settings beside this project's, PyTorch's own with threads
    # that let others compute as well, as ours have them; 380 runs.
    "tuned": Grid(
        controllers=(
            "fixed:1",
            "fixed:32",
            "fixed:1 on quantized:topology=all-gather",
            *_LEARNED_AND_RULE,
            "fixed:1 every 8",
            "default every 8,slow_momentum=0.5",
            *tuning.BEST_CONTROLLERS,
        ),
        compressors=("powersgd:rank=4",),
        methods=(*_PYTORCHS, *tuning.BEST_METHODS),
        workloads=("digits-cnn",),
        links=_LINKS,
        seeds=5,
        hosts=4,
        budget_seconds=_BUDGETS,
        settings=_UNSEEN,
    ),
    # About 65 minutes: what rounds can be set to, on the same links; 320 runs.
    "rounds": Grid(
        controllers=(
            *(f"fixed:1 every {period}" for period in (8, 16, 32)),
            "fixed:4 every 8,variance_reduced=true",
            "default every 8",
            "default every 8,slow_momentum=0.5",
            _DELAY_RATIO,
            _ADACOMM,
        ),
        methods=(
            "plain-ddp",
            *("local-sgd", "local-sgd:period=16", "local-sgd:period=32"),  # 8 where none is named
            *("slowmo", "slowmo:period=16", "slowmo:period=32"),
            "overlap-local-sgd",
        ),
        workloads=("digits-cnn",),
        links=_LINKS,
        seeds=5,
        hosts=4,
        budget_seconds=_BUDGETS,
        settings=_UNSEEN,
    ),
    # About 21 minutes: ranks with few classes each, where local steps drift apart; 120 runs.
    "unequal-data": Grid(
        controllers=(
            "fixed:1",
            "fixed:1 every 8",
            "fixed:1 every 8,variance_reduced=true",
            "fixed:4 every 8",
            "fixed:4 every 8,variance_reduced=true",
            "fixed:32 every 8,variance_reduced=true",
            "default every 8",
            _DELAY_RATIO,
            _ADACOMM,
        ),
        methods=("plain-ddp", "local-sgd", "slowmo"),
        workloads=("digits-cnn",),
        links=("100mbit", "1gbit"),
        seeds=5,
        hosts=4,
        budget_seconds={("", ""): 5.0, ("", "100mbit"): 12.0},
        settings=(*_UNSEEN, "digits-cnn:dirichlet_alpha=0.1"),
    ),
    # About 65 minutes: other models and data, with Adam; 260 runs.
    "workloads": Grid(
        controllers=(
            *("fixed:1", *_LEARNED_AND_RULE, "fixed:1 every 8", "default every 8"),
            *_TOPOLOGIES,
        ),
        compressors=("powersgd:rank=4",),
        methods=_USUAL,
        workloads=("bytes-gpt", "bytes-lstm"),
        optimizers=("adam",),
        links=("100mbit", "1gbit"),
        seeds=5,
        hosts=4,
        budget_seconds={("bytes-gpt", ""): 12.0, ("bytes-lstm", ""): 10.0},
        settings=("bytes-gpt:evaluation_bytes=4096", "bytes-lstm:evaluation_bytes=4096"),
    ),
    # About 32 minutes: a model that the bandwidth binds, 6.4 M parameters; 20 runs.
    "large-model": Grid(
        controllers=("default", "default every 8"),
        compressors=("powersgd:rank=4",),
        methods=("plain-ddp",),
        workloads=("bytes-gpt-large",),
        optimizers=("adam",),
        links=("100mbit",),
        seeds=5,
        hosts=4,
        budget_seconds={("", ""): 60.0},
        settings=("bytes-gpt-large:evaluation_bytes=2048",),
    ),
    # About 11 minutes: a convex problem that fits into a packet, and the codes that know its smoothness; 240 runs.
    "logreg": Grid(
        controllers=("fixed:1", "fixed:32", *_LEARNED_AND_RULE, "default every 8"),
        compressors=("powersgd:rank=4", "qsgd", "smoothness", "smoothness:steps=uniform,blocks=4"),
        methods=_USUAL,
        workloads=("logreg",),
        links=_LINKS,
        seeds=5,
        hosts=4,
        budget_seconds={("", ""): 2.0},
    ),
}
