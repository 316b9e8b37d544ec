//! Fuzz target for OpenAPI documents.

use http::{HeaderMap, StatusCode};
use serde_json::{Map, Value};

use crate::{Api, ApiResponse, ApiSettings, Document, NameSource};

/// Reads a document, and builds a request and a result for each operation.
pub fn document(input: &[u8]) {
    let Ok(document) = Document::parse(input) else {
        return;
    };
    let url = document.server_url().unwrap_or_default();
    assert!(url.len() <= 8_000, "a URL is bounded");
    let settings = ApiSettings {
        include: vec!["*".to_owned()],
        exclude: Vec::new(),
        names: NameSource::OperationId,
        headers: Vec::new(),
    };
    let Ok(api) = Api::read(document, &settings) else {
        return;
    };
    for operation in api.operations() {
        let properties = operation.tool()["inputSchema"]["properties"].as_object();
        let arguments = properties.into_iter().flatten().map(|(name, schema)| {
            let value = match schema["type"].as_str() {
                Some("object") => schema.clone(),
                Some("array") => Value::from(vec![schema.clone()]),
                _ => Value::from("aGk="),
            };
            (name.clone(), value)
        });
        let arguments: Map<_, _> = arguments.collect();
        if let Ok(request) = operation.request("/base", &arguments) {
            assert!(request.target.starts_with("/base/"));
            assert!(!request.target.contains(char::is_whitespace));
        }
        let headers = HeaderMap::new();
        let result = operation.result(&ApiResponse {
            status: StatusCode::OK,
            headers: &headers,
            body: input,
        });
        assert!(result.get("content").is_some());
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_target_takes_documents_of_every_version() {
        for text in [
            "openapi: 3.1.0\npaths: { /a: { get: { parameters: [{ name: b, in: query }] } } }",
            "swagger: '2.0'\npaths: { /a b: { post: { parameters: [{ name: c, in: formData }] } } }",
        ] {
            super::document(text.as_bytes());
        }
    }

    #[test]
    fn documents_that_lack_parts_are_read_without_a_panic() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/openapi");
        let mut documents = 0;
        for entry in std::fs::read_dir(folder).expect("the folder is there") {
            let text = std::fs::read(entry.expect("a file").path()).expect("readable");
            super::document(&text);
            let lines: Vec<_> = text.split(|byte| *byte == b'\n').collect();
            for without in 0..lines.len() {
                let (before, after) = (&lines[..without], &lines[without + 1..]);
                super::document(&[before, after].concat().join(&b'\n'));
            }
            documents += 1;
        }
        assert!(documents >= 10);
    }
}
