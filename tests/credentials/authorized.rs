//! Remote servers that require a person to authorize the gateway in a browser.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, ChildStdout};

use super::*;
use crate::support::oidc::{Provider, browse};

/// `tooldock secrets authorize` for the server of that gateway, before it has printed anything.
fn authorize(gateway: &Gateway, arguments: &[&str]) -> Command {
    let file = gateway.data_dir().join("authorize.yaml");
    fs::write(&file, gateway.configured().to_string()).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tooldock"));
    command
        .args(["secrets", "--config"])
        .arg(file)
        .arg("--data-dir")
        .arg(gateway.data_dir())
        .args(["authorize", "--namespace", "own"])
        .args(arguments)
        .env("SECRETS_KEY", KEY)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// The command while it waits for a browser.
pub(super) struct Asking {
    child: Child,
    printed: BufReader<ChildStdout>,
    pub(super) address: String,
}

impl Asking {
    pub(super) fn start(gateway: &Gateway, arguments: &[&str]) -> Self {
        let mut child = authorize(gateway, arguments).spawn().unwrap();
        let mut printed = BufReader::new(child.stdout.take().unwrap());
        let mut address = String::new();
        while !address.starts_with("http") {
            address.clear();
            let read = printed.read_line(&mut address).unwrap();
            assert_ne!(read, 0, "{:?}", child.wait_with_output());
        }
        Self {
            child,
            printed,
            address: address.trim().to_owned(),
        }
    }

    /// Its last output, and true if it succeeded.
    pub(super) fn end(mut self) -> (bool, String) {
        drop(self.child.stdin.take());
        let mut said = String::new();
        self.printed.read_to_string(&mut said).unwrap();
        let output = self.child.wait_with_output().unwrap();
        said += &String::from_utf8_lossy(&output.stderr);
        (output.status.success(), said)
    }
}

async fn house(far: &Backend, oauth: Value) -> Gateway {
    let token = |name: &str, token: &str| json!({"name": name, "sha256": sha256(token), "namespaces": ["*"]});
    Gateway::empty()
        .config(json!({
            "admission": {"tokens": [token("ada", ADA), token("bob", BOB)]},
            "upstreams": {"remote": {"own": {
                "backends": [far.url()], "mode": "client", "oauth": oauth,
            }}},
            "observability": {"log": {"level": "debug"}},
        }))
        .env("SECRETS_KEY", KEY)
        .start()
        .await
}

/// The token of the last call.
pub(super) fn shown(far: &Backend) -> Option<String> {
    let (head, _) = far.requests("tools/call").pop()?;
    header(&head, "authorization")
}

#[tokio::test]
async fn a_principal_authorizes_the_gateway_once_and_its_tokens_are_renewed_and_kept() {
    let far = Backend::start("far").await;
    let provider = Provider::start(2);
    let oauth = json!({
        "grant": "authorization_code", "personal": true, "issuer": provider.issuer, "scopes": ["mcp:all"],
    });
    let gateway = house(&far, oauth).await;
    let (status, answer) = call(&gateway, ADA, "x").await;
    assert_eq!(status, 403, "{answer}");
    let error = &answer["error"];
    assert_eq!(error["code"], "missing_credential", "{answer}");
    let command = "tooldock secrets authorize --namespace own --scope principal:ada";
    assert_eq!(error["details"]["command"], command, "{answer}");

    let asking = Asking::start(&gateway, &["--scope", "principal:ada"]);
    let back = browse(&provider.issuer, &asking.address).await;
    // A page that guesses the port is no answer.
    let forged = back.replace("state=", "state=x");
    assert_eq!(reqwest::get(forged).await.unwrap().status(), 400);
    assert_eq!(reqwest::get(&back).await.unwrap().status(), 200);
    let (succeeded, said) = asking.end();
    assert!(succeeded, "{said}");

    let first = eventually("ada is served", || async {
        let (status, _) = call(&gateway, ADA, "x").await;
        (status == 200).then(|| shown(&far)).flatten()
    });
    let first = first.await;
    assert!(first.starts_with("Bearer ey"), "{first}");
    let (status, _) = call(&gateway, BOB, "x").await;
    assert_eq!(status, 403, "bob has authorized nobody");

    // Renewed in time: no call fails meanwhile.
    let second = eventually("the token is another one", || async {
        let (status, answer) = call(&gateway, ADA, "x").await;
        assert_eq!(status, 200, "{answer}");
        shown(&far).filter(|it| *it != first)
    });
    let second = second.await;
    let kept = fs::read_to_string(gateway.data_dir().join("authorizations.enc")).unwrap();
    let token = |authorization: &str| authorization.split_once(' ').unwrap().1.to_owned();
    for text in [kept, gateway.log(), gateway.metrics_text().await, said] {
        let shows = [&first, &second].map(|it| text.contains(&token(it)));
        assert_eq!(shows, [false, false], "{text}");
    }

    let listed = Command::new(env!("CARGO_BIN_EXE_tooldock"))
        .args(["secrets", "list"])
        .env("DATA_DIR", gateway.data_dir())
        .env("SECRETS_KEY", KEY)
        .output()
        .unwrap();
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(listed.contains("own  principal:ada  since "), "{listed}");

    let removed = authorize(&gateway, &["--scope", "principal:ada", "--remove"]).output();
    let removed = removed.unwrap();
    assert!(removed.status.success(), "{removed:?}");
    eventually("ada is not served any more", || async {
        let (status, answer) = call(&gateway, ADA, "x").await;
        (status == 403 && answer["error"]["code"] == "missing_credential").then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_operator_authorizes_the_gateway_for_everybody_by_a_pasted_address() {
    let far = Backend::start("far").await;
    let provider = Provider::start(3600);
    let oauth =
        json!({"grant": "authorization_code", "issuer": provider.issuer, "scopes": ["mcp:all"]});
    let gateway = house(&far, oauth).await;
    let (_, answer) = call(&gateway, ADA, "x").await;
    let command = "tooldock secrets authorize --namespace own";
    assert_eq!(answer["error"]["details"]["command"], command, "{answer}");

    let mut asking = Asking::start(&gateway, &[]);
    let back = browse(&provider.issuer, &asking.address).await;
    let input = asking.child.stdin.as_mut().unwrap();
    std::io::Write::write_all(input, format!("{back}\n").as_bytes()).unwrap();
    let (succeeded, said) = asking.end();
    assert!(succeeded, "{said}");
    let served = eventually("everybody is served", || async {
        let (ada, _) = call(&gateway, ADA, "x").await;
        let (bob, _) = call(&gateway, BOB, "x").await;
        ((ada, bob) == (200, 200)).then(|| shown(&far)).flatten()
    });
    assert!(served.await.starts_with("Bearer ey"));
}

#[tokio::test]
async fn silent_connections_and_wrong_answers_hold_up_no_browser() {
    let far = Backend::start("far").await;
    let provider = Provider::start(3600);
    let oauth =
        json!({"grant": "authorization_code", "issuer": provider.issuer, "scopes": ["mcp:all"]});
    let gateway = house(&far, oauth).await;
    let asking = Asking::start(&gateway, &[]);
    let back = browse(&provider.issuer, &asking.address).await;
    let authority = back.split('/').nth(2).unwrap().to_owned();
    let mut silent = Vec::new();
    for number in 0..200 {
        let mut connection = tokio::net::TcpStream::connect(&authority).await.unwrap();
        let begins = format!("GET /callback?state=x{number}&code=y HTTP/1.1\r\n");
        let some = &begins.as_bytes()[..number % begins.len()];
        tokio::io::AsyncWriteExt::write_all(&mut connection, some)
            .await
            .unwrap();
        silent.push(connection);
    }
    let wrong = back.replace("state=", "state=x");
    let refused = back.replace("state=", "error=access_denied&state=x");
    for address in [&wrong, &refused, &wrong] {
        assert_eq!(reqwest::get(address).await.unwrap().status(), 400);
    }
    assert_eq!(reqwest::get(&back).await.unwrap().status(), 200);
    let (succeeded, said) = asking.end();
    assert!(succeeded, "{said}");
}

#[tokio::test]
async fn who_cannot_be_asked_is_told_why_and_nothing_is_kept() {
    let far = Backend::start("far").await;
    let provider = Provider::start(3600);
    let oauth = json!({"grant": "authorization_code", "personal": true, "issuer": provider.issuer, "scopes": ["mcp:all"]});
    let gateway = house(&far, oauth).await;
    for (arguments, why) in [
        (&[][..], "--scope principal:NAME"),
        (&["--scope", "global"], "principal:NAME"),
        (&["--scope", "principal:ada", "--remove"], "not authorized"),
    ] {
        let output = authorize(&gateway, arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(why), "{said}");
    }
    let asking = Asking::start(&gateway, &["--scope", "principal:ada"]);
    let state = asking.address.split("state=").nth(1).unwrap();
    let state = state.split('&').next().unwrap();
    let redirect = asking.address.split("redirect_uri=").nth(1).unwrap();
    let redirect = redirect.split('&').next().unwrap();
    let redirect = redirect.replace("%3A", ":").replace("%2F", "/");
    let refused = format!("{redirect}?error=access_denied&state={state}");
    assert_eq!(reqwest::get(refused).await.unwrap().status(), 400);
    let (succeeded, said) = asking.end();
    assert!(!succeeded && said.contains("access_denied"), "{said}");
    assert!(!gateway.data_dir().join("authorizations.enc").exists());
}
