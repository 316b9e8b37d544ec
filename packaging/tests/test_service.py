"""The service of systemd, the packages and their scripts."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from conftest import PACKAGING, ROOT, program, run

SERVICE = PACKAGING / "systemd/tooldock.service"
# Scale of `systemd-analyze security`, ten times: 25 is "OK". Namespaces of users and mounts, and the calls that make them, are
# open for the sandbox of tools.
EXPOSURE_MAX = 25


def units(folder: Path) -> list[str]:
    """Copies of the units whose program is one of this machine, which has no gateway installed."""
    copies = []
    for unit in ("tooldock.service", "tooldock.socket"):
        text = (PACKAGING / "systemd" / unit).read_text()
        (folder / unit).write_text(text.replace("/usr/bin/tooldock ", "/bin/true "))
        copies.append(str(folder / unit))
    return copies


def test_systemd_takes_the_units_without_a_warning(tmp_path: Path) -> None:
    assert run(program("systemd-analyze"), "verify", "--man=no", *units(tmp_path)) == ""


def test_the_sandbox_of_the_service_is_closed(tmp_path: Path) -> None:
    service, _ = units(tmp_path)
    command = [program("systemd-analyze"), "security", "--offline=yes", f"--threshold={EXPOSURE_MAX}", service]
    run(*command)
    # A threshold below any service's shows that the figure is compared.
    command[3] = "--threshold=1"
    assert subprocess.run(command, capture_output=True, check=False).returncode != 0


def test_the_service_has_more_time_to_end_than_requests_have() -> None:
    stop = re.search(r"^TimeoutStopSec=(\d+)s$", SERVICE.read_text(), re.MULTILINE)
    grace = re.search(r"^  grace: (\d+)s ", (ROOT / "conf/tooldock.yaml").read_text(), re.MULTILINE)
    assert stop and grace and int(stop[1]) > 2 * int(grace[1])


def test_logrotate_takes_the_rule(tmp_path: Path) -> None:
    text = (PACKAGING / "logrotate/tooldock").read_text()
    rule = tmp_path / "tooldock"
    # The user is made by the package; the folder of logs is one of this test.
    rule.write_text(text.replace("    su tooldock tooldock\n", "").replace("/var/log/tooldock", str(tmp_path / "logs")))
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/access.log").write_text("a line\n")
    state = tmp_path / "state"
    rule.chmod(0o644)
    run(program("logrotate"), "--force", f"--state={state}", str(rule))
    assert {path.name for path in (tmp_path / "logs").iterdir()} == {"access.log.1"}


@pytest.mark.parametrize("script", sorted(path for kind in ("deb", "rpm") for path in (PACKAGING / kind).iterdir()))
def test_scripts_of_packages_are_read_by_the_shell(script: Path) -> None:
    run("sh", "-n", str(script))


def test_both_packages_hold_the_same_files() -> None:
    metadata = tomllib.loads((ROOT / "proxy/Cargo.toml").read_text())["package"]["metadata"]
    deb = set()
    for source, folder, mode in metadata["deb"]["assets"]:
        name = source.rsplit("/", 1)[1] if folder.endswith("/") and "*" not in source else ""
        deb.add((source.removeprefix("../"), f"/{folder}{name}", mode))
    rpm = {(it["source"], it["dest"], it["mode"]) for it in metadata["generate-rpm"]["assets"]}
    # The package of Debian makes the file `copyright` of it.
    rpm = {it for it in rpm if it[0] != "LICENSE"}
    assert deb == rpm
    for source, _, _ in deb:
        assert source.startswith("target/dist/stage/") or list(ROOT.glob(source)), source
    configuration = {it["dest"] for it in metadata["generate-rpm"]["assets"] if it.get("config")}
    assert configuration == set(metadata["deb"]["conf-files"])
    assert configuration == {dest for _, dest, _ in deb if dest.startswith("/etc/")}


def test_secrets_of_the_service_are_made_where_its_variables_look_for_them() -> None:
    environment = (PACKAGING / "etc/environment").read_text()
    named = set(re.findall(r"^\w+_FILE=/etc/tooldock/secrets/(\w+)$", environment, re.MULTILINE))
    made = re.search(r"^for name in (.*); do$", (PACKAGING / "setup").read_text(), re.MULTILINE)
    assert made and set(made[1].split()) == named


def test_notes_of_a_release_are_a_section_of_the_changelog() -> None:
    notes = run(".ci/release-notes")
    assert "### Notes for operators who upgrade" in notes and "## Unreleased" not in notes
    missing = subprocess.run([".ci/release-notes", "9.9.9"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert missing.returncode == 1 and "9.9.9" in missing.stderr


def test_workflows_run_targets_of_make_alone() -> None:
    yaml = pytest.importorskip("yaml")
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    targets |= {name for line in re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE) for name in line.split()}
    runs = []
    for workflow in (ROOT / ".github/workflows").glob("*.yml"):
        jobs = yaml.safe_load(workflow.read_text())["jobs"].values()
        runs += [step["run"] for job in jobs for step in job["steps"] if "run" in step]
    assert len(runs) >= 3
    for command in runs:
        words = command.split()
        assert words[0] == "make" and words[1] in targets, command
