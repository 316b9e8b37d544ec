//! The OpenAPI document against the real answers of REST: schemathesis makes requests from it, right and wrong ones, and
//! compares every answer with it. The seed is fixed, so that all runs are equal.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tooldock_filters::rejection::Reason;

use crate::support::ports::free_address;
use crate::support::programs::{node, python, root, run};
use crate::support::{Gateway, TOKEN, tools};

/// The checks of every answer.
const EVERY_ANSWER: &[&str] = &[
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "unsupported_method",
    "allow_header_conformance",
    "ignored_auth",
    "missing_required_header",
];
/// Requests that break the document have to be refused.
const WRONG_IS_REFUSED: &str = "negative_data_rejection";
/// Requests that fit the document have to be accepted.
const RIGHT_IS_ACCEPTED: &str = "positive_data_acceptance";

/// A document that schemathesis tests.
struct Subject {
    document: &'static str,
    /// The paths, as a regular expression.
    paths: &'static str,
    /// Further checks.
    checks: &'static [&'static str],
}

/// Runs schemathesis over a document.
fn conforms(base: &str, subject: &Subject, scratch: &Path) {
    let checks = [EVERY_ANSWER, subject.checks].concat().join(",");
    let mut schemathesis = python("clients-schemathesis");
    schemathesis
        .args(["-m", "schemathesis.cli", "run"])
        .arg(format!("{base}{}", subject.document))
        .args(["--header", &format!("Authorization: Bearer {TOKEN}")])
        .args(["--checks", &checks])
        .args(["--include-path-regex", subject.paths])
        .args(["--phases", "examples,coverage,fuzzing"])
        .args(["--max-examples", "10", "--seed", "1", "--workers", "1"])
        .args(["--generation-database", "none", "--request-timeout", "20"])
        .args(["--no-color", "--warnings", "off"])
        // Its reports, if it writes any.
        .current_dir(scratch);
    run(&mut schemathesis);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rest_answers_as_its_document_says() {
    let example = |path: &str| {
        let path = root().join("conf/examples").join(path);
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    let math = example("multi-tool/math_tools.py");
    let strings = example("multi-tool/string_tools.py");
    let notes = example("full-server/notes.py");
    let (node, packages) = node();
    let script = |path: &Path| std::path::absolute(path).expect("a path");
    let everything = script(&root().join("tests/fixtures/servers/everything.mjs"));
    let typescript = script(&packages.join("clients/server_typescript1.mjs"));
    let gateway = Gateway::with_tools([
        ("basic", "hello.py", tools::HELLO),
        ("multi", "math_tools.py", &math),
        ("multi", "string_tools.py", &strings),
        ("full", "notes.py", &notes),
    ])
    .config(json!({"upstreams": {"stdio": {
        "everything": {"command": node.get_program().to_str(), "args": [everything]},
        "typescript": {
            "command": node.get_program().to_str(),
            "args": ["--preserve-symlinks", "--preserve-symlinks-main", typescript],
        },
    }}}))
    .start()
    .await;
    let scratch = tempfile::tempdir().unwrap();
    for subject in [
        Subject {
            document: "/namespaces/basic/openapi.json?view=all",
            paths: "",
            checks: &[WRONG_IS_REFUSED, RIGHT_IS_ACCEPTED],
        },
        Subject {
            document: "/openapi.json?namespace=basic",
            paths: "",
            checks: &[WRONG_IS_REFUSED],
        },
        // Text and truth values may stand for numbers, as FastMCP has it.
        Subject {
            document: "/namespaces/multi/openapi.json",
            paths: "^/tools/(add|multiply)$",
            checks: &[RIGHT_IS_ACCEPTED],
        },
        Subject {
            document: "/namespaces/multi/openapi.json",
            paths: "^/tools/(?!add$|multiply$)",
            checks: &[WRONG_IS_REFUSED],
        },
        // A tool among them asks its caller, which cannot be asked.
        Subject {
            document: "/namespaces/full/openapi.json",
            paths: "",
            checks: &[WRONG_IS_REFUSED],
        },
        // The tools that neither fail on purpose nor ask their caller. The server itself takes any arguments.
        Subject {
            document: "/namespaces/everything/openapi.json",
            paths: "^/tools/(test_[a-z]+_content|test_multiple_content_types|echo_raw|whoami|update_resource)",
            checks: &[WRONG_IS_REFUSED, RIGHT_IS_ACCEPTED],
        },
        // Its schema requires arguments in branches alone, where the document does not see that a body is required.
        Subject {
            document: "/namespaces/everything/openapi.json",
            paths: "^/tools/json_schema",
            checks: &[WRONG_IS_REFUSED],
        },
        // The tool wants more of its argument than its schema can say.
        Subject {
            document: "/namespaces/typescript/openapi.json",
            paths: "^/tools/half$",
            checks: &[WRONG_IS_REFUSED],
        },
    ] {
        conforms(&gateway.url(""), &subject, scratch.path());
    }
}

/// A gateway with the REST listeners of all generations. Its addresses: the core's, all namespaces of the core at once,
/// `v1-rest` and `vault`.
async fn of_every_generation() -> (Gateway, [String; 4]) {
    let addresses = [(); 4].map(|()| free_address());
    let metrics = free_address();
    let listener = |name: &str, profile: &str, at: usize| json!({"name": name, "address": addresses[at].to_string(), "profile": profile});
    let mut all = listener("all", "core", 1);
    all["namespace"] = json!("global");
    let gateway = Gateway::with_tools([
        ("shared", "hello.py", tools::HELLO),
        ("calc", "math_tools.py", tools::MATH),
        ("tax", "tax.py", TAX),
        ("orders", "orders.py", ORDERS),
        ("contracts", "numbers.py", CONTRACT),
        ("vault", "word_count.py", WORD_COUNT),
        ("vault", "orders.py", ORDERS),
    ])
    .listening(addresses[0], metrics)
    .config(json!({"listeners": [
        listener("core", "core", 0),
        all,
        listener("v1-rest", "v1-rest", 2),
        listener("vault", "vault", 3),
        {"name": "metrics", "address": metrics.to_string(), "profile": "metrics"},
    ]}))
    .start()
    .await;
    let bases = addresses.map(|address| format!("http://{address}"));
    (gateway, bases)
}

const TAX: &str = "from fastmcp.tools import tool\n\n@tool\ndef add(a: float, b: float) -> float:\n    \"\"\"Adds tax, too.\"\"\"\n    return a + b + 1\n";
const WORD_COUNT: &str = "def word_count(text: str) -> int:\n    \"\"\"Count words in a text.\"\"\"\n    return len(text.split())\n";
const CONTRACT: &str = r#"
from pydantic import BaseModel
from app.registry import ToolDefinition, ToolRegistry

class Text(BaseModel):
    text: str

def register_tools(registry: ToolRegistry) -> None:
    registry.register(ToolDefinition("shout", "Says it aloud.", Text, lambda payload: payload.text.upper()))
"#;
/// A schema with definitions, one of which contains itself.
const ORDERS: &str = r#"
from typing import Literal
from fastmcp.tools import tool
from pydantic import BaseModel, Field

class Place(BaseModel):
    city: str = Field(description="Where to")
    kind: Literal["home", "work"] = "home"

class Part(BaseModel):
    name: str
    parts: list["Part"] = []

class Order(BaseModel):
    places: list[Place]
    part: Part

@tool
def deliver(order: Order, note: str = "") -> Order:
    """Delivers an order and returns it."""
    return order
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_listeners_of_older_clients_answer_as_their_documents_say() {
    let (_gateway, [_, all, v1, vault]) = of_every_generation().await;
    let scratch = tempfile::tempdir().unwrap();
    // Text and truth values may stand for numbers, as FastMCP has it, so wrong numbers are not always refused.
    let numbers = "^/tools/(add|multiply|tax_add)$";
    let others = "^/tools/(?!add$|multiply$|tax_add$)|^/[^t]";
    for (base, document) in [
        (&all, "/openapi.json"),
        (&v1, "/openapi.json"),
        (&v1, "/namespaces/orders/openapi.json?view=all"),
        (&vault, "/openapi.json?view=all"),
    ] {
        let subject = |paths, checks| Subject {
            document,
            paths,
            checks,
        };
        conforms(base, &subject(others, &[WRONG_IS_REFUSED]), scratch.path());
        if document == "/openapi.json" {
            conforms(
                base,
                &subject(numbers, &[RIGHT_IS_ACCEPTED]),
                scratch.path(),
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_make_tools_of_a_document_call_them_on_every_listener() {
    let (_gateway, [core, all, v1, vault]) = of_every_generation().await;
    let sum = json!({"a": 2, "b": 3});
    let order = json!({"order": {
        "places": [{"city": "Ulm", "kind": "work"}],
        "part": {"name": "a", "parts": [{"name": "b", "parts": []}]},
    }});
    let delivered = &order["order"];
    let v1_answer = |tool: &str, result: &Value| json!({"tool": tool, "result": result});
    for (document, operation, arguments, answer) in [
        (
            format!("{core}/namespaces/calc/openapi.json"),
            "add",
            &sum,
            json!(5.0),
        ),
        (
            format!("{core}/namespaces/orders/openapi.json"),
            "deliver",
            &order,
            delivered.clone(),
        ),
        (
            format!("{core}/openapi.json?namespace=orders"),
            "deliver",
            &order,
            delivered.clone(),
        ),
        (
            format!("{all}/openapi.json?view=tools"),
            "tax_add",
            &sum,
            json!(6.0),
        ),
        (
            format!("{all}/openapi.json"),
            "deliver",
            &order,
            delivered.clone(),
        ),
        (
            format!("{v1}/openapi.json"),
            "tax_add",
            &sum,
            v1_answer("tax_add", &json!(6.0)),
        ),
        (
            format!("{v1}/openapi.json"),
            "deliver",
            &order,
            v1_answer("deliver", delivered),
        ),
        (
            format!("{v1}/namespaces/orders/openapi.json"),
            "deliver",
            &order,
            v1_answer("deliver", delivered),
        ),
        (
            format!("{vault}/openapi.json"),
            "deliver",
            &order,
            json!({"result": delivered, "isError": false}),
        ),
        (
            format!("{vault}/openapi.json"),
            "word_count",
            &json!({"text": "Hello world"}),
            json!({"result": 2, "isError": false}),
        ),
    ] {
        let printed = run(python("base")
            .arg(root().join("tests/clients/openapi_tools.py"))
            .args([&document, TOKEN, operation, &arguments.to_string()]));
        let seen: Value = serde_json::from_str(&printed).unwrap();
        // An import with one fixed address has no way to send a header.
        let by_import = match document.contains("?namespace=") {
            true => Value::Null,
            false => answer.clone(),
        };
        assert_eq!(seen["by_import"], by_import, "{document} {operation}");
        assert_eq!(seen["by_servers"], answer, "{document} {operation}");
    }
    // Calls at the core name a namespace, so there is no document of all of them.
    let everything = format!("{core}/openapi.json?namespace=_global");
    let everything = reqwest::Client::new().get(everything).bearer_auth(TOKEN);
    assert_eq!(everything.send().await.unwrap().status().as_u16(), 404);
}

#[tokio::test]
async fn every_refusal_of_a_call_has_a_status_in_the_document() {
    let gateway = Gateway::with_tools([("basic", "hello.py", tools::HELLO)])
        .start()
        .await;
    let response = gateway
        .request("GET", "/namespaces/basic/openapi.json")
        .send()
        .await
        .unwrap();
    let document: Value = response.json().await.unwrap();
    let responses = &document["paths"]["/tools/say_hello"]["post"]["responses"];
    for reason in Reason::ALL {
        // A call is a POST, and REST is held to no Accept.
        if matches!(reason, Reason::MethodNotAllowed | Reason::NotAcceptable) {
            continue;
        }
        let status = reason.status().as_u16().to_string();
        assert!(responses[&status].is_object(), "{reason:?}: {status}");
    }
}
