//! A stub HTTP API that is made from OpenAPI documents: it publishes each document, refuses requests that do not fit the
//! document, and answers the others with values that fit the response's schema.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use serde_json::{Map, Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tooldock_base::yaml;

use super::backend::{answered, header, read};
use super::sha256;

const METHODS: [&str; 5] = ["get", "put", "post", "patch", "delete"];

/// A running stub API. Dropping it stops the server.
pub struct Api {
    pub address: SocketAddr,
    state: Arc<Mutex<State>>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct State {
    /// Texts of documents by path.
    texts: BTreeMap<String, String>,
    documents: Vec<Document>,
    /// Heads and bodies of all requests, in the order of arrival.
    requests: Vec<(String, String)>,
    /// Operations that were called with a request that fits: `petstore GET /pet/{petId}`.
    called: BTreeSet<String>,
    /// Statuses and bodies of answers by path, instead of those that are made from a document.
    answers: BTreeMap<String, (u16, String)>,
}

struct Document {
    name: String,
    base: String,
    root: Value,
}

impl Api {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let state = Arc::<Mutex<State>>::default();
        let served = Arc::clone(&state);
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(serve(stream, Arc::clone(&served)));
            }
        });
        Self {
            address,
            state,
            task,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("fine")
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Serves the API that the document `text` describes, and the document at `/NAME/openapi`. Replaces an API of the same name.
    /// Returns the URL of the document.
    pub fn serve(&self, name: &str, text: &str) -> String {
        let root: Value = yaml::from_str(text).expect(name);
        let path = format!("/{name}/openapi");
        let mut state = self.state();
        state.texts.insert(path.clone(), text.to_owned());
        state.documents.retain(|it| it.name != name);
        state.documents.push(Document {
            name: name.to_owned(),
            base: base(&root),
            root,
        });
        self.url(&path)
    }

    /// Sets the status and the body that requests for a path are answered with from now on.
    pub fn answer(&self, path: &str, status: u16, body: &str) {
        let answer = (status, body.to_owned());
        self.state().answers.insert(path.to_owned(), answer);
    }

    /// Returns heads and bodies of the requests whose request line begins with `line`.
    pub fn requests(&self, line: &str) -> Vec<(String, String)> {
        let mut all = self.state().requests.clone();
        all.retain(|(head, _)| head.starts_with(line));
        all
    }

    /// Returns the operations of all documents, and the operations that were called with a request that fits.
    pub fn operations(&self) -> (BTreeSet<String>, BTreeSet<String>) {
        let state = self.state();
        let all = state.documents.iter().flat_map(|document| {
            let paths = document.root["paths"].as_object().expect("paths");
            paths.iter().flat_map(move |(path, item)| {
                let methods = METHODS.iter().filter(|it| item.get(**it).is_some());
                methods.map(move |it| format!("{} {} {path}", document.name, it.to_uppercase()))
            })
        });
        (all.collect(), state.called.clone())
    }
}

impl Drop for Api {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Returns the base path of a document's first server, without a slash at its end.
fn base(root: &Value) -> String {
    let server = &root["servers"][0];
    let mut url = match root["basePath"].as_str() {
        Some(path) => path.to_owned(),
        None => server["url"].as_str().unwrap_or_default().to_owned(),
    };
    for (name, variable) in server["variables"].as_object().into_iter().flatten() {
        url = url.replace(
            &format!("{{{name}}}"),
            variable["default"].as_str().expect("a default"),
        );
    }
    url.trim_end_matches('/').to_owned()
}

async fn serve(mut stream: TcpStream, state: Arc<Mutex<State>>) {
    while let Some((head, body)) = read(&mut stream).await {
        let answer = state.lock().expect("fine").answer(&head, &body);
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

impl State {
    fn answer(&mut self, head: &str, body: &str) -> String {
        self.requests.push((head.to_owned(), body.to_owned()));
        let mut line = head.split(' ');
        let (method, target) = (
            line.next().unwrap_or_default(),
            line.next().unwrap_or_default(),
        );
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        if let Some(text) = self.texts.get(path) {
            let etag = format!("\"{}\"", sha256(text));
            if header(head, "if-none-match").as_ref() == Some(&etag) {
                return answered(304, "", "");
            }
            return answered(200, &format!("ETag: {etag}\r\n"), text);
        }
        if let Some((status, body)) = self.answers.get(path) {
            return answered(*status, "", body);
        }
        let found = self
            .documents
            .iter()
            .find_map(|it| it.operation(method, path));
        let Some((document, template, operation)) = found else {
            return answered(404, "", "\"there is no such path\"");
        };
        if let Some(wrong) = document.misfit(template, operation, head, query, body) {
            return answered(400, "", &json!(wrong).to_string());
        }
        self.called
            .insert(format!("{} {method} {template}", document.name));
        document.response(operation)
    }
}

impl Document {
    fn operation(&self, method: &str, path: &str) -> Option<(&Self, &str, &Value)> {
        let path = path.strip_prefix(&self.base)?;
        let fits = |template: &str| {
            let (one, other) = (path.split('/'), template.split('/'));
            let parts = one.zip(other).all(|(given, wanted)| {
                given == wanted || (wanted.starts_with('{') && !given.is_empty())
            });
            parts && path.matches('/').count() == template.matches('/').count()
        };
        let paths = self.root["paths"].as_object()?;
        let (template, item) = paths.iter().find(|(template, _)| fits(template))?;
        Some((self, template, item.get(method.to_lowercase())?))
    }

    fn resolved<'a>(&'a self, value: &'a Value) -> &'a Value {
        match value.get("$ref").and_then(Value::as_str) {
            Some(target) => self.resolved(self.root.pointer(&target[1..]).expect("a target")),
            None => value,
        }
    }

    /// Returns the reason why a request does not fit its operation; `None` if it fits.
    fn misfit(
        &self,
        template: &str,
        operation: &Value,
        head: &str,
        query: &str,
        body: &str,
    ) -> Option<String> {
        let shared = &self.root["paths"][template]["parameters"];
        let parameters = [shared, &operation["parameters"]]
            .into_iter()
            .filter_map(Value::as_array);
        let parameters: Vec<_> = parameters.flatten().map(|it| self.resolved(it)).collect();
        let media_type = header(head, "content-type").unwrap_or_default();
        for parameter in &parameters {
            let name = parameter["name"].as_str().expect("a name");
            let is_required = parameter["required"] == true;
            let has_one = match parameter["in"].as_str() {
                Some("query") => query.contains(&name.replace(['[', ']', '$', '>'], "")),
                Some("header") => header(head, name).is_some(),
                Some("cookie") => header(head, "cookie").is_some_and(|it| it.contains(name)),
                Some("formData" | "body") => body.contains(name) || parameter["in"] == "body",
                _ => true,
            };
            if !has_one && is_required {
                return Some(format!("{name} is missing"));
            }
        }
        let request = self.resolved(&operation["requestBody"]);
        if let Some(content) = request["content"].as_object() {
            let mut types = content.keys();
            let fits = types.any(|it| media_type.starts_with(it.as_str()));
            let is_left_out = body.is_empty() && request["required"] != true;
            if !fits && !is_left_out {
                return Some(format!("{media_type} is not accepted"));
            }
        }
        if media_type.contains("json") && serde_json::from_str::<Value>(body).is_err() {
            return Some("the body is no JSON".to_owned());
        }
        None
    }

    /// Returns a response with the operation's first successful status.
    fn response(&self, operation: &Value) -> String {
        let responses = operation["responses"].as_object().expect("responses");
        let (status, response) = responses
            .iter()
            .find(|(it, _)| it.starts_with('2'))
            .expect("a success");
        let status = status.replace("XX", "00").parse().expect("a status");
        let response = self.resolved(response);
        if let Some(schema) = response.get("schema") {
            return answered(status, "", &sample(&self.root, schema, 4).to_string());
        }
        let content = response["content"].as_object();
        let Some((media_type, media)) = content.and_then(|it| it.iter().next()) else {
            return answered(status, "", "");
        };
        if media_type == "application/json" {
            return answered(
                status,
                "",
                &sample(&self.root, &media["schema"], 4).to_string(),
            );
        }
        let body = "some text";
        format!(
            "HTTP/1.1 {status} X\r\nContent-Type: {media_type}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
    }
}

/// Returns a value that fits a schema. `root`: the document that references lead into; `depth`: maximum number of nested objects
/// and lists with content.
pub fn sample(root: &Value, schema: &Value, depth: usize) -> Value {
    if let Some(target) = schema.get("$ref").and_then(Value::as_str) {
        return sample(root, root.pointer(&target[1..]).expect(target), depth);
    }
    let given = [
        schema.get("example"),
        schema.get("const"),
        schema.get("default"),
    ];
    let first = [&schema["examples"][0], &schema["enum"][0], &Value::Null];
    if let Some(value) = given
        .into_iter()
        .flatten()
        .chain(first)
        .find(|it| !it.is_null())
    {
        return value.clone();
    }
    for key in ["anyOf", "oneOf"] {
        if let Some(schema) = schema.get(key).and_then(|it| it.get(0)) {
            return sample(root, schema, depth);
        }
    }
    let mut object = Map::new();
    for part in schema
        .get("allOf")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        if let Value::Object(members) = sample(root, part, depth) {
            object.extend(members);
        }
    }
    let kind = schema["type"]
        .as_str()
        .or_else(|| schema["type"][0].as_str());
    match kind {
        Some("string") => json!("text"),
        Some("integer") => json!(1),
        Some("number") => json!(1.5),
        Some("boolean") => json!(true),
        Some("array") if depth == 0 => json!([]),
        Some("array") => json!([sample(root, &schema["items"], depth - 1)]),
        _ if kind.is_some() || schema.get("properties").is_some() || !object.is_empty() => {
            let properties = schema["properties"].as_object();
            for (name, schema) in properties.into_iter().flatten().filter(|_| depth > 0) {
                object.insert(name.clone(), sample(root, schema, depth - 1));
            }
            object.into()
        }
        _ => json!("text"),
    }
}
