"""Published output schemas are true of a tool's results and of its failures, and of nothing else."""

import jsonschema
import pytest

from app.failure_schema import admitting_failures

FAILED = {"error": {"code": "internal_error", "message": "no", "details": {}}}
WRAPPED = {"type": "object", "properties": {"result": {"type": "integer"}}, "required": ["result"]}
STRICT = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
OWN_ERROR = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}
REFERRED = {
    "type": "object",
    "$ref": "#/$defs/Point",
    "$defs": {"Point": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}},
}
COUNTS = {"type": "object", "additionalProperties": {"type": "integer"}}


@pytest.mark.parametrize(
    ("schema", "result", "wrong"),
    [
        (WRAPPED, {"result": 1}, {"result": "x"}),
        (STRICT, {"n": 1}, {"m": 1}),
        (OWN_ERROR, {"error": "mine"}, {"error": 1}),
        (REFERRED, {"x": 1}, {"x": "1"}),
        (COUNTS, {"a": 1}, {"a": "1"}),
    ],
)
def test_results_and_failures_fit_and_other_things_do_not(schema, result, wrong):
    published = admitting_failures(schema)
    jsonschema.Draft202012Validator.check_schema(published)
    validator = jsonschema.Draft202012Validator(published)
    assert published["type"] == "object"
    assert validator.is_valid(result)
    assert validator.is_valid(FAILED)
    assert not validator.is_valid(wrong)
