"""The intended differences between our runtime and FastMCP: the table, and the reason of each.

The README has the same names and reasons, which a test holds in step. A rewrite takes what FastMCP said and gives what
ours is meant to say; what it does not recognise it leaves alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import outcome_rewrites as outcomes
from . import rewrites
from .seen import Seen

__all__ = ["NAMED", "Named", "Seen"]


@dataclass(frozen=True)
class Named:
    """One difference that is meant."""

    of: str
    """What it is a difference of, as in `Seen`."""
    name: str
    reason: str
    rewrite: Callable[[Seen], Any]


NAMED: tuple[Named, ...] = (
    Named("context", "context-of-one-call", "A Context is one call's way to its client. What reaches for the server object, its sessions, state, other components or the transport is not there; `elicit_url`, `sample`, `list_roots`, `notice`, `critical`, the notifications and the call's trace are.", rewrites.context_of_one_call),
    Named("served", "two-contexts", "A second Context parameter is refused with a sentence: it is the same Context, and rather a mistake.", rewrites.two_contexts),
    Named("served", "lost-return-type", "A return annotation that cannot be resolved costs the output schema, not the tool.", rewrites.lost_return_type),
    Named("tool", "description-is-there", "Every tool has a description, empty if its author wrote none (MCP-27).", rewrites.description_is_there),
    Named("tool", "no-empty-tags", "A tool without tags sends no `_meta` that says so.", rewrites.no_empty_tags),
    Named("tool", "no-derived-titles", "A title that is only the parameter's name is never sent; FastMCP overlooks those of types without a JSON type.", rewrites.no_derived_titles),
    Named("tool", "kept-words", "A description beside other marks in `Annotated`, and what is said of a pattern or an IP address, is kept; FastMCP loses it.", rewrites.kept_words),
    Named("tool", "accepted-alias", "`AliasChoices`: the schema has the first name that is accepted, not the parameter's, which is refused.", rewrites.accepted_alias),
    Named("tool", "true-formats", "Output schemas claim only what strict validators find in every result: no `date-time` of naive values, no `uniqueItems`, no `pattern` in Python's syntax, no `multipleOf` of a `float`, no `enum` of flags that add up.", rewrites.true_formats),
    Named("tool", "nan-is-null", "NaN and the infinities are sent as null (Q-28), so a number in a result may be null.", rewrites.nan_is_null),
    Named("tool", "aliases-in-schemas", "The output schema of a model has its aliases, since results do.", rewrites.written_by_alias),
    Named("tool", "unwrapped-schemas", "The schema of a union of objects is not wrapped in `result`, since objects are not.", rewrites.objects_as_they_are),
    Named("tool", "no-schema-for-either", "Where a result may be an object or not, no schema would fit each; FastMCP wraps both.", rewrites.no_schema_for_either),
    Named("tool", "no-empty-schema", "An output schema that constrains nothing (any set) or is only null is not sent.", rewrites.no_empty_schema),
    Named("tool", "said-of-the-result", "A title that is written on the return annotation is kept.", rewrites.said_of_the_result),
    Named("call", "no-wrap-mark", "A wrapped result has its mark in the output schema only, not in `_meta` of every result.", outcomes.no_wrap_mark),
    Named("call", "refusals-of-fields", "A missing or unknown argument has pydantic's message for a field, not that for a call.", outcomes.refusals_of_fields),
    Named("call", "refusals-by-code", "Refused arguments are `invalid_arguments: …` with each complaint as data (EX-04b), not pydantic's printed error.", outcomes.refusals_by_code),
    Named("call", "errors-by-code", "A failure's text begins with its code and the exception's class (DESIGN §3, EX-04b), not with the tool's name.", outcomes.errors_by_code),
    Named("call", "missing-imports", "An import that fails in a tool is a `dependency_error` (WRK-12).", outcomes.missing_imports),
    Named("call", "stop-iteration", "A StopIteration of a sync function is reported as what it is.", outcomes.stop_iteration),
    Named("call", "grouped-errors", "A ToolError in an exception group is the tool's own word: task groups pack errors so.", outcomes.grouped_errors),
    Named("call", "not-found-is-said", "A NotFoundError is a word of the tool's own, like a ToolError, and its message all of it.", outcomes.not_found_is_said),
    Named("call", "objects-as-they-are", "An object is structured content as it is (MCP-28, K-33), whatever the annotation.", outcomes.objects_as_they_are),
    Named("call", "values-are-structured", "Scalars and lists are structured content as `{\"result\": …}` (K-33), with an output schema or without.", outcomes.values_are_structured),
    Named("call", "nothing-is-text", "None, NaN and empty lists are one block of JSON text (EX-04), not no content.", outcomes.nothing_is_text),
    Named("call", "numbers-as-returned", "An annotation of `float` converts nothing: 1 stays 1.", outcomes.numbers_as_returned),
    Named("call", "written-by-alias", "Models are written by alias, as fastmcp 2.14.5 (K-03) and FastAPI do; FastMCP 4 goes by `serialize_by_alias`.", outcomes.written_by_alias),
    Named("call", "results-fit-their-model", "Anything returned for an annotated model becomes that model, or is an `output_type` error that says where it does not fit; FastMCP sends what does not fit its own output schema.", outcomes.results_fit_their_model),
    Named("call", "bytes-are-blocks", "Bytes are an image, an audio clip or a binary resource (Q-28), not text.", outcomes.bytes_are_blocks),
    Named("call", "bytes-inside", "Bytes inside an object are base64 (Q-28); FastMCP reads them as UTF-8, or fails.", outcomes.bytes_inside),
    Named("call", "keys-as-json", "Keys that are no texts become their JSON text: `null`, `[1,2]`.", outcomes.keys_as_json),
    Named("call", "sequences-are-lists", "A range or a view of a dict is a list, not its `repr`.", outcomes.sequences_are_lists),
    Named("call", "results-fit-their-type", "A result that does not fit the output schema of its annotation is converted as pydantic does (true to 1 for `int`), or is an `output_type` error that says where; FastMCP sends what its clients refuse.", outcomes.results_fit_their_type),
    Named("call", "no-repr", "A value without a JSON form is an `internal_error` that names its type (Q-28); FastMCP sends its `repr` with a memory address.", outcomes.no_repr),
    Named("call", "iterators-are-kept", "An iterator that is no generator is refused, since it may never end; FastMCP drains it and sends nothing.", outcomes.iterators_are_kept),
    Named("call", "broken-text", "Halves of surrogate pairs are replaced; FastMCP's answer is lost.", outcomes.broken_text),
    Named("call", "blocks-of-a-list", "Each item of a ToolResult's list is a block of its own.", outcomes.blocks_of_a_list),
    Named("call", "log-text", "A log message without `extra` is its text alone; FastMCP wraps it in an object.", outcomes.log_text),
)  # fmt: skip
