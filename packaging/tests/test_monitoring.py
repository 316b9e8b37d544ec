"""Alert rules, their runbook, and dashboards. That their metrics and labels exist is the matter of tests/packaging.rs."""

import json
import re
from pathlib import Path

import pytest
import yaml
from conftest import PACKAGING, ROOT, program, run

ALERTS = PACKAGING / "prometheus/alerts.yaml"
DASHBOARDS = sorted((PACKAGING / "grafana").glob("*.json"))
# Values of the variables of Grafana, for a parser that does not know them.
VARIABLES = {"$__rate_interval": "5m", "$job": "tooldock", "$instance": "a", "$namespace": "b"}


def alerts() -> list[dict]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def test_prometheus_takes_the_alert_rules() -> None:
    output = run(program("promtool"), "check", "rules", str(ALERTS))
    assert f"SUCCESS: {len(alerts())} rules found" in output


def test_each_alert_has_a_section_of_the_runbook_with_symptom_and_commands() -> None:
    page = (ROOT / "docs/runbook.md").read_text()
    sections = {section.splitlines()[0]: section for section in page.split("\n## ")[1:]}
    for rule in alerts():
        section = sections[rule["alert"]]
        assert "**Symptom.**" in section and "| cause | command |" in section, rule["alert"]
        assert rule["annotations"]["runbook"] == f"docs/runbook.md#{rule['alert'].lower()}"
        assert rule["annotations"]["summary"] and rule["labels"]["severity"] in ("critical", "warning")
    named = {name for name in sections if name.startswith("ToolDock")}
    assert named == {rule["alert"] for rule in alerts()}


def test_alerts_worth_having_are_rules() -> None:
    page = (ROOT / "docs/operating.md").read_text()
    listed = page.split("Alerts worth having", 1)[1].split("```")[1].split()
    metrics = {word for word in re.findall(r"\b(?:tooldock|process)_\w+", " ".join(listed))}
    assert len(metrics) >= 9
    rules = " ".join(rule["expr"] for rule in alerts())
    assert not [metric for metric in metrics if metric not in rules]


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_prometheus_reads_each_expression_of_the_dashboards(dashboard: Path, tmp_path: Path) -> None:
    board = json.loads(dashboard.read_text())
    expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert len(expressions) > 8
    rules = []
    for index, expression in enumerate(expressions):
        for variable, value in VARIABLES.items():
            expression = expression.replace(variable, value)
        assert "$" not in expression, expression
        rules.append({"record": f"dashboard:{index}", "expr": expression})
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    run(program("promtool"), "check", "rules", str(file))


def test_dashboards_have_names_and_places_of_their_own() -> None:
    boards = [json.loads(path.read_text()) for path in DASHBOARDS]
    assert {path.stem for path in DASHBOARDS} == {"overview", "namespace", "streams", "replicas"}
    assert len({board["uid"] for board in boards}) == len({board["title"] for board in boards}) == 4
    for board in boards:
        ids = [panel["id"] for panel in board["panels"]]
        assert len(set(ids)) == len(ids)
        taken = set()
        for panel in board["panels"]:
            place = panel["gridPos"]
            cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
            assert not cells & taken and place["x"] + place["w"] <= 24, panel["title"]
            taken |= cells
