//! Steps of the fake function `talk` before it answers, from its arguments:
//! `{"steps": [{"progress": 3}, {"log": "warning"}, {"notice": "tools"}, {"updated": "a://b"},
//! {"ask": [{"key": "k", "method": "elicitation/create", "params": {}}]}, {"leave": [..]}, {"hang": true}]}`; `leave` asks
//! and does not wait.
//!
//! It answers `{"k": result}` for every question it asked, or `{"k": {"failed": "code: message"}}`. A question whose key is in
//! the caller's `inputs` is answered from there, as workers do.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures_util::FutureExt;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::{Notify, Semaphore};
use tooldock_base::error::CallError;
use tooldock_process::worker::{
    Answers, Ask, AskMethod, CallEvent, CallSink, Notice, Question, Replier,
};

#[derive(Deserialize)]
struct Script {
    #[serde(default)]
    steps: Vec<Step>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Step {
    Progress(u32),
    Log(String),
    Notice(String),
    Updated(String),
    Ask(Vec<Asked>),
    Leave(Vec<Asked>),
    Hang(bool),
}

#[derive(Deserialize)]
struct Asked {
    key: String,
    method: String,
    params: Option<Box<RawValue>>,
}

/// The answers to one `ask`, collected as they arrive.
#[derive(Default)]
struct Given {
    answers: Mutex<BTreeMap<String, Value>>,
    changed: Notify,
}

impl Answers for Given {
    fn answer(&self, key: &str, outcome: Result<&[u8], &CallError>) {
        let answer = match outcome {
            Ok(result) => serde_json::from_slice(result).expect("an answer is JSON"),
            Err(error) => json!({ "failed": error.to_string() }),
        };
        let mut answers = self.answers.lock().expect("not poisoned");
        let before = answers.insert(key.to_owned(), answer);
        assert!(before.is_none(), "{key} was answered twice");
        self.changed.notify_one();
    }
}

/// Runs a script to its end. `hang` waits for a permit of `release`.
pub(super) async fn run(
    script: &[u8],
    caller: &Value,
    sink: Option<&Arc<dyn CallSink>>,
    release: &Semaphore,
) -> Value {
    let script: Script = serde_json::from_slice(script).expect("a script");
    let send = |event| {
        if let Some(sink) = sink {
            sink.event(event);
        }
    };
    let mut answers = serde_json::Map::new();
    for step in script.steps {
        match step {
            Step::Progress(times) => {
                for n in 1..=times {
                    let report = json!({ "progress": n, "total": times });
                    send(CallEvent::Progress(report.to_string().into()));
                }
            }
            Step::Log(level) => send(CallEvent::Log {
                level: level.parse().expect("a level"),
                params: json!({ "level": level, "data": "said" }).to_string().into(),
            }),
            Step::Notice(kind) => send(CallEvent::Notice(match &*kind {
                "tools" => Notice::ToolsChanged,
                "prompts" => Notice::PromptsChanged,
                _ => Notice::ResourcesChanged,
            })),
            Step::Updated(uri) => {
                send(CallEvent::Notice(Notice::ResourceUpdated {
                    uri: uri.into(),
                }));
            }
            Step::Hang(wait) => {
                if wait {
                    release.acquire().await.expect("never closed").forget();
                }
            }
            Step::Ask(asked) => answers.extend(ask(asked, caller, &send).await),
            Step::Leave(asked) => {
                let asking = ask(asked, caller, &send);
                assert!(asking.now_or_never().is_none(), "nobody answers at once");
            }
        }
    }
    Value::Object(answers)
}

async fn ask(
    asked: Vec<Asked>,
    caller: &Value,
    send: &impl Fn(CallEvent),
) -> BTreeMap<String, Value> {
    let given = Arc::new(Given::default());
    let mut questions = Vec::new();
    let count = asked.len();
    for asked in asked {
        if let Some(input) = caller["inputs"].get(&asked.key) {
            given.answer(&asked.key, Ok(input.to_string().as_bytes()));
            continue;
        }
        let params = asked
            .params
            .map_or_else(|| "{}".into(), |raw| raw.get().to_owned());
        questions.push(Question {
            key: asked.key.into(),
            method: AskMethod::from_method(&asked.method).expect("a method"),
            params: Bytes::from(params),
        });
    }
    if !questions.is_empty() {
        let replier = Replier::new(Arc::clone(&given) as Arc<dyn Answers>);
        send(CallEvent::Ask(Ask { questions, replier }));
    }
    loop {
        let answers = given.answers.lock().expect("not poisoned").clone();
        if answers.len() == count {
            return answers;
        }
        given.changed.notified().await;
    }
}
