"""Where figures come from: versions, machine, and revision of the source."""

import datetime
import os
import platform
import shlex
import sys
from pathlib import Path
from typing import Any

import torch

from mqgrad import cuda_ext
from mqgrad.trainers.versions import checkout_revision, git_revision, package_versions

_PACKAGES = ("mqgrad", "torch", "numpy", "scikit-learn")


def provenance(*, of_labs: bool = False) -> dict[str, Any]:
    """Versions, machine and git revision, as plain types. Holds no name of a host, a user or a folder.

    Args:
        of_labs: all figures come from labs that this process builds, whose hosts have a TCP congestion control of
            their own: that of the machine, which had no part in them, is left out.
    """
    return {
        "revision": git_revision(),
        "versions": {
            "python": platform.python_version(),
            **package_versions(_PACKAGES),
            "codec": cuda_ext.IMPLEMENTATION,
        },
        "machine": {
            **processor(),
            "cores": available_cores(),
            "kernel": f"{platform.system()} {platform.release()}",
            **({} if of_labs else {"tcp": tcp_congestion_control()}),
        },
    }


def script_origin(launcher: str = "python") -> dict[str, Any]:
    """As :func:`provenance`, with the command that started this script, the date, and the revision of the script: it
    runs from a checkout, which need not be what the package was installed from."""
    script = [] if launcher == "mqgrad" else sys.argv[:1]
    command = f"{launcher} {shlex.join([*script, *sys.argv[1:]])}".rstrip()
    own = {} if launcher == "mqgrad" else {"script_revision": _script_revision(Path(sys.argv[0]).resolve())}
    return {"command": command, "date": datetime.date.today().isoformat(), **own, **provenance()}


def _script_revision(script: Path) -> str | None:
    """Of one in ``experiments/benchmarks`` of a checkout, with changes of any source there."""
    return checkout_revision(script, script.parents[2]) if len(script.parents) > 2 else None


def describe_run(quick: bool, *, of_labs: bool = False) -> dict[str, Any]:
    """Machine, versions, date and what else the machine is doing, as plain types; ``of_labs`` as in provenance."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None  # runnable processes, mean of a minute
    huge_pages = os.environ.get("THP_MEM_ALLOC_ENABLE") == "1"  # of what torch allocates: inputs of the codec
    return {
        "date": datetime.date.today().isoformat(),
        "quick": quick,
        "load_average": load,
        "vector_extension": torch.backends.cpu.get_cpu_capability(),
        "huge_pages": huge_pages,
        **provenance(of_labs=of_labs),
    }


def available_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> dict[str, str | None]:
    """Name, family and model of the first processor, as the kernel tells them; its architecture for a name that it
    does not tell, else None. In virtual machines the name alone may not tell Zen 4 from Zen 5: both are "AMD EPYC".
    """
    try:
        first = cpuinfo.read_text().partition("\n\n")[0]
    except OSError:
        first = ""
    fields = (line.partition(":") for line in first.splitlines())
    told = {name.strip(): value.strip() for name, _, value in fields}
    return {
        "cpu": told.get("model name", platform.machine()),
        "cpu_family": told.get("cpu family"),
        "cpu_model": told.get("model"),
    }


def tcp_congestion_control() -> str | None:
    """What decides how flows share a link, for new connections of this process; None where Linux does not tell."""
    try:
        return Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
    except OSError:
        return None
