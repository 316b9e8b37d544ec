//! The OpenAPI document against what REST really answers: schemathesis makes requests from it, right and wrong ones, and
//! holds every answer against it. The seed is fixed, so that a run is what the last one was.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tooldock_filters::rejection::Reason;

use crate::support::programs::{node, python, root, run};
use crate::support::{Gateway, TOKEN, tools};

/// What every answer is held against.
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
/// What breaks the document has to be refused.
const WRONG_IS_REFUSED: &str = "negative_data_rejection";
/// What fits the document has to be accepted.
const RIGHT_IS_ACCEPTED: &str = "positive_data_acceptance";

/// What schemathesis is let loose on.
struct Subject {
    document: &'static str,
    /// The paths, as a regular expression.
    paths: &'static str,
    /// Further checks.
    checks: &'static [&'static str],
}

/// Runs schemathesis over a document.
fn conforms(gateway: &Gateway, subject: &Subject, scratch: &Path) {
    let checks = [EVERY_ANSWER, subject.checks].concat().join(",");
    let mut schemathesis = python("clients-schemathesis");
    schemathesis
        .args(["-m", "schemathesis.cli", "run"])
        .arg(gateway.url(subject.document))
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
        // One of the tools asks its caller, who cannot be asked.
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
        conforms(&gateway, &subject, scratch.path());
    }
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
