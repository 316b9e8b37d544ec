//! A real authorization server with a single user, who consents to all requests.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

use super::programs::node;

/// `oidc-provider` in a separate process, which ends with its standard input.
pub struct Provider {
    process: Child,
    /// Held open: the provider continues to print notices.
    _printed: BufReader<ChildStdout>,
    pub issuer: String,
}

impl Provider {
    /// Starts a provider whose access tokens are valid for `lifetime` seconds.
    pub fn start(lifetime: u32) -> Self {
        Self::start_with(lifetime, &json!([]))
    }

    /// Starts a provider at which `clients`, an array of their metadata, are registered.
    pub fn start_with(lifetime: u32, clients: &Value) -> Self {
        let mut process = script("oidc_provider.mjs")
            .arg(lifetime.to_string())
            .arg(clients.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("node starts");
        let mut issuer = String::new();
        let printed = process.stdout.take().expect("a pipe");
        let mut printed = BufReader::new(printed);
        printed.read_line(&mut issuer).expect("the issuer");
        Self {
            process,
            _printed: printed,
            issuer: issuer.trim().to_owned(),
        }
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

/// A script of `tests/clients`, run by Node.
pub fn script(name: &str) -> Command {
    let (mut node, packages) = node();
    node.args(["--preserve-symlinks", "--preserve-symlinks-main"])
        .arg(packages.join("clients").join(name));
    node
}

/// Acts as the browser of a user who consents: follows redirects, with cookies, until the authorization server redirects to
/// another host. Returns that address.
pub async fn browse(issuer: &str, address: &str) -> String {
    let browser = reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .build()
        .expect("a client");
    let mut cookies = Vec::<String>::new();
    let mut address = address.to_owned();
    while address.starts_with(issuer) {
        let request = browser.get(&address).header("Cookie", cookies.join("; "));
        let answer = request.send().await.expect("an answer");
        for cookie in answer.headers().get_all("set-cookie") {
            let cookie = cookie.to_str().expect("text").split(';').next();
            let cookie = cookie.unwrap_or_default().to_owned();
            let name = cookie.split('=').next().unwrap_or_default().to_owned();
            cookies.retain(|it| it.split('=').next() != Some(&name));
            cookies.push(cookie);
        }
        let location = answer.headers().get("location");
        let location = location.expect("it agrees to everything");
        let location = location.to_str().expect("text");
        address = match location.starts_with('/') {
            true => format!("{issuer}{location}"),
            false => location.to_owned(),
        };
    }
    address
}
