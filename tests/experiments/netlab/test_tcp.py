"""TCP's congestion control on the hosts of a lab: the one that was asked for, whatever the machine's own is."""

import json
import subprocess
from pathlib import Path

import pytest
from labs import needs_lab
from typer.testing import CliRunner

from mqgrad.experiments.cli import app
from mqgrad.experiments.netlab import tcp as netlab_tcp
from mqgrad.experiments.netlab.iproute import NetLabError
from mqgrad.experiments.netlab.lab import NetLab, list_labs
from mqgrad.experiments.netlab.run import run_on_new_lab

IN_FORCE = Path("/proc/sys/net/ipv4/tcp_congestion_control")


def on_hosts(lab: NetLab) -> list[str]:
    """What each host's new connections use."""
    outputs = []
    for host in range(lab.hosts):
        process = lab.popen(host, ["cat", str(IN_FORCE)], stdout=subprocess.PIPE)
        outputs.append(process.communicate(timeout=20)[0].decode().strip())
    return outputs


@needs_lab
def test_every_host_has_the_one_asked_for_and_the_machine_keeps_its_own() -> None:
    machine = IN_FORCE.read_text()
    with NetLab(2) as default, NetLab(3, congestion_control="reno") as chosen:
        assert on_hosts(default) == ["cubic"] * 2
        assert on_hosts(chosen) == ["reno"] * 3
        assert IN_FORCE.read_text() == machine
    assert IN_FORCE.read_text() == machine


@needs_lab
def test_the_result_tells_it(tmp_path: Path) -> None:
    result = run_on_new_lab(NetLab(1), ["true"], tmp_path, time_limit_seconds=30)
    assert result.tcp == "cubic"
    command = ["netlab", "--tcp", "reno", "--logs", str(tmp_path), "--", "cat", str(IN_FORCE)]
    done = CliRunner().invoke(app, command)
    assert done.stdout == "reno\n"
    assert "TCP reno" in done.stderr
    assert json.loads((tmp_path / "netlab.json").read_text())["tcp"] == "reno"


@needs_lab
def test_one_that_the_kernel_lacks_is_named_with_the_remedy() -> None:
    lab = NetLab(2, congestion_control="nonsense")
    told = r"no TCP congestion control 'nonsense'.*cubic.*modprobe tcp_nonsense.*--tcp"
    with pytest.raises(NetLabError, match=told), lab:
        pass
    assert lab.name not in list_labs()


@needs_lab
def test_one_that_only_the_machine_itself_may_use_is_named_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tcp_available_congestion_control").write_text("reno cubic nonsense\n")
    (tmp_path / "tcp_allowed_congestion_control").write_text("reno cubic\n")
    monkeypatch.setattr(netlab_tcp, "_KERNEL", tmp_path)
    told = r"'nonsense'.*tcp_allowed_congestion_control=\"reno cubic nonsense\".*--tcp"
    with pytest.raises(NetLabError, match=told), NetLab(1, congestion_control="nonsense"):
        pass


@pytest.mark.parametrize("name", ["", "../cubic", "cubic\n", "cubic reno", "$(id)", "kübic", "x" * 16])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="no name of a TCP congestion control"):
        NetLab(2, congestion_control=name)
