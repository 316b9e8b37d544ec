//! SDK clients that keep calling while replicas fail and return. They are scripts in `tests/clients`.

use std::collections::BTreeMap;
use std::process::Stdio;

use serde::Deserialize;
use serde_json::Value;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::counted::Outcome;
use crate::support::programs::{python, root};
use crate::support::{DEADLINE, TOKEN};

/// Process that runs clients of one SDK.
pub struct Steady(Child);

/// Starts a script from `tests/clients` in a Python environment. `clients`: the JSON list that describes the clients.
pub fn steady(script: &str, environment: &str, clients: &Value) -> Steady {
    let process = Command::from(python(environment))
        .arg(root().join("tests/clients").join(script))
        .arg(clients.to_string())
        .env("TOKEN", TOKEN)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn();
    Steady(process.expect("the clients start"))
}

/// Last line of a script's output.
#[derive(Deserialize)]
struct Told {
    outcomes: BTreeMap<String, String>,
    wrong: Vec<String>,
}

impl Steady {
    /// Ends the clients, each after a call that has a result. Returns the outcome of each call by its mark.
    ///
    /// # Panics
    ///
    /// When a client does not end, has lost an event, got an event twice, or met a failure that no fault explains.
    pub async fn outcomes(self) -> BTreeMap<String, Outcome> {
        // Waiting closes the script's standard input, at which the script ends.
        let ended = timeout(2 * DEADLINE, self.0.wait_with_output()).await;
        let told = ended.expect("a last call").expect("own child");
        assert!(told.status.success(), "{}", told.status);
        let told: Told = serde_json::from_slice(&told.stdout).expect("JSON");
        assert!(told.wrong.is_empty(), "{:?}", told.wrong);
        let mut failures = BTreeMap::new();
        for outcome in told.outcomes.values().filter(|it| *it != "done") {
            *failures.entry(outcome).or_insert(0) += 1;
        }
        println!("of {} calls failed {failures:?}", told.outcomes.len());
        let outcomes = told.outcomes.into_iter();
        outcomes
            .map(|(mark, outcome)| match outcome.as_str() {
                "done" => (mark, Outcome::Done),
                _ => (mark, Outcome::Failed),
            })
            .collect()
    }
}
