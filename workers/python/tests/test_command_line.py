from __future__ import annotations

import pytest
from app import command_line

LEAST = ["--namespace", "ns", "--socket", "/run/ns.sock", "--venv", "/data/venvs/ns"]


def test_what_is_not_given_has_its_default():
    options = command_line.parse(LEAST)
    assert (options.namespace, options.socket, options.venv) == ("ns", "/run/ns.sock", "/data/venvs/ns")
    assert options.tools == "/data/tools/ns"
    assert (options.generation, options.sync_concurrency, options.max_frame) == (0, 1, 10 * 1024 * 1024)
    assert options.import_timeout == 10 and options.greets


def test_values_stand_behind_their_name_or_an_equals_sign():
    more = ["--generation=7", "--tools", "/t", "--import-timeout", "0.5", "--no-greeting", "--sync-concurrency=4"]
    options = command_line.parse([*more, *LEAST, "--max-frame", "4096"])
    assert (options.generation, options.tools, options.import_timeout) == (7, "/t", 0.5)
    assert (options.sync_concurrency, options.max_frame, options.greets) == (4, 4096, False)


def test_a_relative_path_is_one_below_where_it_was_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = command_line.parse([*LEAST, "--tools", "tools"])
    assert options.tools == str(tmp_path / "tools")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--namespace, --socket, --venv must be given"),
        (LEAST[:4], "--venv must be given"),
        (LEAST[:3], "--socket needs a value"),
        (["--namespace", *LEAST[2:]], "--namespace needs a value"),
        ([*LEAST, "--tools", "--no-greeting"], "--tools needs a value"),
        ([*LEAST, "here"], "unknown argument here"),
        ([*LEAST, "--no-greeting=1"], "unknown argument --no-greeting=1"),
        ([*LEAST, "--max-frame", "1023"], "--max-frame: must be at least 1024"),
        ([*LEAST, "--generation", "-1"], "--generation: must be at least 0"),
        ([*LEAST, "--generation", "1e3"], "--generation: "),
        ([*LEAST, "--import-timeout", "0"], "--import-timeout: must be"),
        ([*LEAST, "--import-timeout=inf"], "--import-timeout: must be"),
    ],
)
def test_wrong_usage_is_said_with_the_right_one(capsys, arguments, said):
    with pytest.raises(SystemExit) as end:
        command_line.parse(arguments)
    assert end.value.code == 2
    shown = capsys.readouterr()
    assert said in shown.err and "usage: " in shown.err and shown.out == ""


def test_help_is_no_error(capsys):
    with pytest.raises(SystemExit) as end:
        command_line.parse(["--help"])
    assert end.value.code == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in command_line._READERS)
