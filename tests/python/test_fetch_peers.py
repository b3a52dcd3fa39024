"""tools/fetch_peers.py, with a stand-in for pip."""

import subprocess

import pytest
from support import tool

fetch_peers = tool("fetch_peers")


@pytest.fixture
def commands(monkeypatch):
    ran = []

    def run(command, check):
        ran.append(command)
        return subprocess.CompletedProcess(command, 3)

    monkeypatch.setattr(fetch_peers.subprocess, "run", run)
    return ran


def test_wheels_are_those_of_the_peers_and_of_the_other_python(commands, tmp_path):
    assert fetch_peers.main([str(tmp_path), "fa3", "flashinfer", "--python", "3.12"]) == 3
    (command,) = commands
    assert command[-3:] == ["fa3-fwd==0.0.3", "flashinfer-python==0.6.6",
                            "apache-tvm-ffi==0.1.15.post2"]
    assert command[command.index("--python-version") + 1] == "3.12" and "cp312" in command
    assert command[command.index("--dest") + 1] == str(tmp_path)


def test_without_names_each_package_comes_once(commands, tmp_path):
    fetch_peers.main([str(tmp_path)])
    packages = [word for word in commands[0] if "==" in word]
    assert len(packages) == len(set(packages)) == 9


@pytest.mark.parametrize(("arguments", "message"), [
    (["fa2"], "PEER: expected some of fa3, fa4, flashinfer, got 'fa2'"),
    (["--python", "12"], "--python: expected a version such as 3.12, got '12'"),
])
def test_what_does_not_exist_is_refused(commands, arguments, message, tmp_path, capsys):
    with pytest.raises(SystemExit):
        fetch_peers.main([str(tmp_path), *arguments])
    assert message in capsys.readouterr().err and commands == []
