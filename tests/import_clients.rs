//! `tooldock import`, `add`, `remove` and `connect`: files of clients become servers that are called, and the gateway gets
//! into the files of clients. No credential is in any file or output on the way.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;
use tooldock_base::yaml;

use crate::support::{Gateway, eventually, programs};

const KEY: &str = "test-secrets-key";
/// Values that must show nowhere.
const TOKEN: &str = "ghp_canary0123456789abcdefghij0123456789";
const BEARER: &str = "sk-canary-0123456789abcdef0123456789";

/// A user's machine: a home, and the place where the gateway is started.
struct Machine {
    folder: TempDir,
}

impl Machine {
    fn new() -> Self {
        Self {
            folder: TempDir::new().unwrap(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    fn yaml(&self, name: &str) -> Value {
        yaml::from_str(&self.text(name)).unwrap()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tooldock"));
        command
            .args(arguments)
            .current_dir(self.folder.path())
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.folder.path())
            .env("DATA_DIR", self.path("data"))
            .env("SECRETS_KEY", KEY)
            .stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str]) -> Ran {
        Ran::of(&self.command(arguments).output().unwrap())
    }

    /// Asserts that no file below the folder holds one of the values, but for files whose name ends so.
    fn holds_no(&self, values: &[&str], but: &str) {
        let mut folders = vec![self.folder.path().to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if !path.to_string_lossy().ends_with(but) {
                    let text = String::from_utf8_lossy(&fs::read(&path).unwrap()).into_owned();
                    for value in values {
                        assert!(!text.contains(value), "{}", path.display());
                    }
                }
            }
        }
    }
}

/// The end of a command.
struct Ran {
    status: Option<i32>,
    out: String,
    told: String,
}

impl Ran {
    fn of(output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let (out, told) = (text(&output.stdout), text(&output.stderr));
        for value in [TOKEN, BEARER] {
            assert!(!out.contains(value) && !told.contains(value), "{out}{told}");
        }
        Self {
            status: output.status.code(),
            out,
            told,
        }
    }

    fn ok(self) -> Self {
        assert_eq!(self.status, Some(0), "{}{}", self.out, self.told);
        self
    }
}

/// The arguments of a server with one tool, `look`, which says the value of TOKEN.
fn environment_server() -> Value {
    let script = programs::root().join("tests/fixtures/servers/environment.py");
    json!([fs::canonicalize(script).unwrap()])
}

/// A `mcp.json` with a server that needs a token, and entries of every kind.
fn mcp_json() -> String {
    json!({"mcpServers": {
        "Environment": {"command": "python3", "args": environment_server(), "env": {"TOKEN": TOKEN}, "alwaysAllow": ["look"]},
        "search": {"url": "https://mcp.example/mcp", "headers": {"Authorization": format!("Bearer {BEARER}")}},
        "odd": 7,
    }})
    .to_string()
}

#[tokio::test]
async fn an_imported_server_gets_its_token_and_answers() {
    let machine = Machine::new();
    machine.write("mcp.json", &mcp_json());
    let gateway = Gateway::empty()
        .env("SECRETS_KEY", KEY)
        .start_with(|data| fs::create_dir_all(data.join("tools/empty")).unwrap())
        .await;
    let data = gateway.data_dir().to_str().unwrap();
    let ran = machine
        .run(&["import", "mcp.json", "--data-dir", data])
        .ok();
    assert!(
        ran.told.contains("mcp.json:1: Environment.alwaysAllow: "),
        "{}",
        ran.told
    );
    assert!(
        ran.told.contains("mcp.json:1: odd: is no server"),
        "{}",
        ran.told
    );
    assert!(
        ran.told.contains("gets the name environment"),
        "{}",
        ran.told
    );
    assert!(ran.out.contains("Next: send SIGHUP"), "{}", ran.out);
    gateway.reload().await;
    let found = eventually("the server answers", async || {
        let (status, text) = gateway.call("environment", "look", json!({})).await;
        (status == 200).then_some(text)
    })
    .await;
    assert!(found.to_string().contains(TOKEN), "{found}");
    machine.holds_no(&[TOKEN, BEARER], "mcp.json");
    let external = fs::read_to_string(gateway.data_dir().join("external/config.yaml")).unwrap();
    assert!(
        external.contains("${TOKEN}") && !external.contains(TOKEN),
        "{external}"
    );
    let remote = &machine.yaml("conf/tooldock.yaml")["upstreams"]["remote"]["search"];
    assert_eq!(
        *remote,
        json!({"backends": ["https://mcp.example/mcp"], "credentials": "Bearer ${AUTHORIZATION_TOKEN}"})
    );
    let listed = machine.run(&["secrets", "list", "--data-dir", data]).ok();
    assert!(
        listed.out.contains("AUTHORIZATION_TOKEN  search"),
        "{}",
        listed.out
    );
}

#[test]
fn a_server_of_the_same_name_stays_and_names_that_collide_are_numbered() {
    let machine = Machine::new();
    machine.write(
        "data/external/config.yaml",
        "# mine\nservers:\n  a: { command: old } # here\n",
    );
    machine.write(
        "one.json",
        r#"{"mcpServers": {"A": {"command": "new"}, "b": {"command": "x"}, "B": {"command": "y"}}}"#,
    );
    machine.write("two.json", r#"{"servers": {"b": {"command": "x"}}}"#);
    let ran = machine.run(&["import", "one.json", "two.json"]).ok();
    assert!(
        ran.told
            .contains("one.json:1: a: is left as it is: external/config.yaml has the name a"),
        "{}",
        ran.told
    );
    assert!(ran.told.contains("gets the name b-2"), "{}", ran.told);
    assert!(
        ran.told.contains("two.json:1: b: is the same as b"),
        "{}",
        ran.told
    );
    let text = machine.text("data/external/config.yaml");
    assert!(
        text.starts_with("# mine\nservers:\n  a: { command: old } # here\n"),
        "{text}"
    );
    let servers = &machine.yaml("data/external/config.yaml")["servers"];
    assert_eq!(
        (&servers["b"]["command"], &servers["b-2"]["command"]),
        (&json!("x"), &json!("y"))
    );
    machine.run(&["import", "one.json", "--replace"]).ok();
    let servers = &machine.yaml("data/external/config.yaml")["servers"];
    assert_eq!(servers["a"]["command"], "new");
}

#[test]
fn the_exit_status_says_whether_a_limit_is_lost_or_a_file_unreadable() {
    let machine = Machine::new();
    machine.write(
        "closed.json",
        r#"{"servers": {"a": {"command": "x", "sandboxEnabled": true}, "b": {"command": "y"}}}"#,
    );
    machine.write("broken.json", "{\n\"mcpServers\": }");
    machine.write("good.json", r#"{"mcpServers": {"c": {"command": "z"}}}"#);
    let ran = machine.run(&["import", "closed.json"]);
    assert_eq!(ran.status, Some(2), "{}{}", ran.out, ran.told);
    assert!(
        ran.told
            .contains("closed.json:1: a.sandboxEnabled: security: "),
        "{}",
        ran.told
    );
    let servers = &machine.yaml("data/external/config.yaml")["servers"];
    assert_eq!(servers["a"], json!({"command": "x", "enabled": false}));
    assert_eq!(servers["b"], json!({"command": "y"}));
    let ran = machine.run(&["import", "broken.json", "none.json", "good.json"]);
    assert_eq!(ran.status, Some(2));
    assert!(ran.told.contains("broken.json:2: JSON: "), "{}", ran.told);
    assert!(
        ran.told.contains("none.json:1: No such file"),
        "{}",
        ran.told
    );
    assert_eq!(
        machine.yaml("data/external/config.yaml")["servers"]["c"]["command"],
        "z"
    );
    assert_eq!(machine.run(&["import"]).status, Some(2));
}

#[test]
fn a_dry_run_shows_names_and_writes_nothing() {
    let machine = Machine::new();
    machine.write("mcp.json", &mcp_json());
    let ran = machine.run(&["import", "mcp.json", "--dry-run"]).ok();
    for part in [
        "TOKEN: ${TOKEN}",
        "# secret: TOKEN (environment)",
        "credentials: Bearer ${AUTHORIZATION_TOKEN}",
        "conf/tooldock.yaml",
    ] {
        assert!(ran.out.contains(part), "{part}: {}", ran.out);
    }
    assert!(!machine.path("data").exists() && !machine.path("conf").exists());
}

#[test]
fn credentials_are_not_lost_where_they_cannot_be_stored() {
    let machine = Machine::new();
    machine.write("mcp.json", &mcp_json());
    let output = machine
        .command(&["import", "mcp.json"])
        .env_remove("SECRETS_KEY")
        .output();
    let ran = Ran::of(&output.unwrap());
    assert_eq!(ran.status, Some(2));
    assert!(
        ran.told.contains("SECRETS_KEY") && ran.told.contains("--no-secrets"),
        "{}",
        ran.told
    );
    assert!(!machine.path("data/external").exists() && !machine.path("conf").exists());
    let output = machine
        .command(&["import", "mcp.json", "--no-secrets"])
        .env_remove("SECRETS_KEY")
        .output();
    let ran = Ran::of(&output.unwrap()).ok();
    assert!(
        ran.out
            .contains("tooldock secrets set --key TOKEN --scope environment\n"),
        "{}",
        ran.out
    );
    assert!(!machine.path("data/secrets.enc").exists());
    machine.holds_no(&[TOKEN, BEARER], "mcp.json");
}

#[test]
fn all_servers_can_go_into_a_part_of_a_configuration() {
    let machine = Machine::new();
    machine.write("mcp.json", &mcp_json());
    machine.run(&["import", "mcp.json", "-o", "part.yaml"]).ok();
    let part = machine.yaml("part.yaml");
    assert_eq!(
        part["upstreams"]["stdio"]["environment"]["env"]["TOKEN"],
        "${TOKEN}"
    );
    assert!(part["upstreams"]["remote"]["search"].is_object());
    assert!(!machine.path("data/external").exists() && !machine.path("conf").exists());
    let mode = fs::metadata(machine.path("part.yaml"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(
        machine
            .run(&["import", "mcp.json", "-o", "part.yaml"])
            .status,
        Some(2)
    );
    let output = machine
        .command(&["check", "-c", "part.yaml"])
        .env("BEARER_TOKEN", "a-token-0123456789abcdef")
        .output();
    Ran::of(&output.unwrap()).ok();
}

#[test]
fn the_shipped_configuration_takes_a_server_and_keeps_its_comments() {
    let machine = Machine::new();
    let shipped = fs::read_to_string(programs::root().join("conf/tooldock.yaml")).unwrap();
    machine.write("conf/tooldock.yaml", &shipped);
    let add = [
        "add",
        "search",
        "https://mcp.example/mcp",
        "--header",
        "X-Region: eu",
    ];
    machine.run(&add).ok();
    let text = machine.text("conf/tooldock.yaml");
    assert_eq!(
        text.lines().filter(|line| line.contains('#')).count(),
        shipped.lines().filter(|line| line.contains('#')).count()
    );
    let remote = &machine.yaml("conf/tooldock.yaml")["upstreams"]["remote"]["search"];
    assert_eq!(remote["headers"]["set"]["X-Region"], "eu");
    assert_eq!(machine.run(&add).status, Some(2));
    machine.run(&["remove", "search"]).ok();
    assert_eq!(
        machine.yaml("conf/tooldock.yaml")["upstreams"]["remote"],
        json!({})
    );
    assert_eq!(machine.run(&["remove", "search"]).status, Some(2));
}

#[test]
fn a_server_is_added_with_its_secrets_and_removed_with_them() {
    let machine = Machine::new();
    let mut child = machine
        .command(&[
            "add",
            "env",
            "--env",
            &format!("API_TOKEN={TOKEN}"),
            "--env",
            "MODE=plain",
            "--secret",
            "TOKEN",
            "--description",
            "Says a token",
            "--",
            "python3",
            "server.py",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    writeln!(child.stdin.take().unwrap(), "{BEARER}").unwrap();
    Ran::of(&child.wait_with_output().unwrap()).ok();
    let text = machine.text("data/external/config.yaml");
    assert!(text.contains("# Says a token"), "{text}");
    let server = &machine.yaml("data/external/config.yaml")["servers"]["env"];
    assert_eq!(
        server["env"],
        json!({"API_TOKEN": "${API_TOKEN}", "MODE": "plain", "TOKEN": "${TOKEN}"})
    );
    assert_eq!(
        server["cwd"],
        json!(fs::canonicalize(machine.folder.path()).unwrap())
    );
    machine.holds_no(&[TOKEN, BEARER], "-");
    let wrong = machine.run(&["add", "x", "--env", TOKEN, "--", "y"]);
    assert_eq!(wrong.status, Some(2));
    let ran = machine.run(&["remove", "env"]).ok();
    assert!(
        ran.out
            .contains("tooldock secrets remove --key API_TOKEN --scope env"),
        "{}",
        ran.out
    );
    machine.run(&["add", "env", "--", "python3"]).ok();
    let ran = machine.run(&["remove", "env", "--secrets"]).ok();
    assert!(ran.out.contains("TOKEN (env) is removed"), "{}", ran.out);
    assert_eq!(
        machine.run(&["secrets", "list"]).ok().out.lines().count(),
        1
    );
}

/// The entry of each client that `connect` prints, by the key around it.
const CLIENTS: [(&str, &str); 10] = [
    ("claude-code", "mcpServers"),
    ("claude-desktop", "mcpServers"),
    ("codex", "mcp_servers"),
    ("cursor", "mcpServers"),
    ("gemini", "mcpServers"),
    ("lm-studio", "mcpServers"),
    ("opencode", "mcp"),
    ("vscode", "servers"),
    ("windsurf", "mcpServers"),
    ("zed", "context_servers"),
];

#[test]
fn what_connect_prints_is_read_by_the_importer_as_the_client_reads_it() {
    let machine = Machine::new();
    for (client, key) in CLIENTS {
        let ran = machine
            .run(&[
                "connect",
                client,
                "github",
                "--print",
                "--url",
                "https://gw.example",
            ])
            .ok();
        assert!(
            ran.out.contains(key) && ran.out.contains("https://gw.example/mcp/github"),
            "{}",
            ran.out
        );
        assert!(ran.told.contains("no key is made"), "{}", ran.told);
        if key != "mcp_servers" {
            let printed: Value = serde_json::from_str(&ran.out).unwrap();
            assert!(printed[key]["tooldock-github"].is_object(), "{}", ran.out);
        }
        machine.write("printed", &ran.out);
        let again = machine.run(&["import", "printed", "--dry-run"]).ok();
        assert!(
            again.out.contains("- https://gw.example/mcp/github"),
            "{client}: {}",
            again.out
        );
    }
    assert!(!machine.path("data/keys.json").exists());
}

#[tokio::test]
async fn connect_writes_a_key_that_opens_the_namespace_alone() {
    let machine = Machine::new();
    let gateway = Gateway::with_tools([
        ("shared", "hello.py", crate::support::tools::HELLO),
        ("other", "hello.py", crate::support::tools::HELLO),
    ])
    .start()
    .await;
    let data = gateway.data_dir().to_str().unwrap();
    machine.write(
        ".cursor/mcp.json",
        "{\n  // mine\n  \"mcpServers\": {\"a\": {\"command\": \"x\"}}\n}\n",
    );
    let connect = [
        "connect",
        "cursor",
        "shared",
        "--url",
        &gateway.url(""),
        "--data-dir",
        data,
    ];
    let ran = machine.run(&connect).ok();
    assert!(!ran.out.contains("td_"), "{}", ran.out);
    let text = machine.text(".cursor/mcp.json");
    assert!(
        text.contains("// mine") && text.contains("\"a\": {\"command\": \"x\"}"),
        "{text}"
    );
    assert!(machine.text(".cursor/mcp.json.bak").contains("// mine"));
    let mode = fs::metadata(machine.path(".cursor/mcp.json"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    let read: Value = serde_json::from_str(&text.replace("// mine", "")).unwrap();
    let entry = &read["mcpServers"]["tooldock-shared"];
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
    let status = async |url: &str| {
        let request = gateway.client.post(url).json(&list);
        let request = request.header(
            "Authorization",
            entry["headers"]["Authorization"].as_str().unwrap(),
        );
        let request = request.header("Accept", "application/json, text/event-stream");
        request.send().await.unwrap().status().as_u16()
    };
    assert_eq!(status(entry["url"].as_str().unwrap()).await, 200);
    assert_ne!(status(&gateway.url("/mcp/other")).await, 200);
    // A second entry of the name makes no second key.
    assert_eq!(machine.run(&connect).status, Some(2));
    let keys = machine
        .run(&["keys", "list", "--json", "--data-dir", data])
        .ok();
    let keys: Value = serde_json::from_str(&keys.out).unwrap();
    assert_eq!(keys.as_array().map(Vec::len), Some(1), "{keys}");
    assert_eq!(keys[0]["namespaces"], json!(["shared"]));
}

#[test]
fn a_broken_file_of_a_client_is_left_and_costs_no_key() {
    let machine = Machine::new();
    machine.write(".codex/config.toml", "model = \n");
    let ran = machine.run(&["connect", "codex", "shared"]);
    assert_eq!(ran.status, Some(2));
    assert!(ran.told.contains("config.toml: line 1"), "{}", ran.told);
    assert_eq!(machine.text(".codex/config.toml"), "model = \n");
    assert!(!machine.path("data/keys.json").exists());
    machine.write("key", "td_given0123456789\n");
    machine.write(".codex/config.toml", "model = \"x\"\n");
    machine
        .run(&["connect", "codex", "shared", "--key-file", "key"])
        .ok();
    let text = machine.text(".codex/config.toml");
    assert!(
        text.contains("Bearer td_given0123456789") && text.starts_with("model = \"x\"\n"),
        "{text}"
    );
    assert!(!Path::new(&machine.path("data/keys.json")).exists());
}

#[test]
fn connect_takes_no_public_url_of_the_current_folder_unasked_and_keeps_a_backup_of_the_user() {
    let machine = Machine::new();
    let conf = "admission: { public_url: 'https://gw.example' }";
    machine.write("conf/tooldock.yaml", conf);
    machine.write(".cursor/mcp.json", "{}\n");
    machine.write(".cursor/mcp.json.bak", "of the user\n");
    let ran = machine.run(&["connect", "cursor", "files"]);
    assert_eq!(ran.status, Some(2), "{}", ran.told);
    assert!(
        ran.told
            .contains("-c conf/tooldock.yaml or --url https://gw.example"),
        "{}",
        ran.told
    );
    assert!(!machine.path("data/keys.json").exists());
    machine
        .run(&["connect", "cursor", "files", "-c", "conf/tooldock.yaml"])
        .ok();
    let text = machine.text(".cursor/mcp.json");
    assert!(text.contains("https://gw.example/mcp/files"), "{text}");
    assert_eq!(machine.text(".cursor/mcp.json.bak"), "of the user\n");
    assert_eq!(machine.text(".cursor/mcp.json.bak.2"), "{}\n");
    // An address of this machine needs no word.
    let conf = "admission: { public_url: 'http://localhost:8000' }";
    machine.write("conf/tooldock.yaml", conf);
    machine
        .run(&["connect", "cursor", "files", "--replace"])
        .ok();
}

#[test]
fn a_preview_cannot_drive_the_terminal() {
    let machine = Machine::new();
    let evil = "x\u{202e}y\u{2066}z";
    let servers = json!({"mcpServers": {"a": {"command": evil}}});
    machine.write("mcp.json", &servers.to_string());
    let ran = machine.run(&["import", "mcp.json", "--dry-run"]).ok();
    assert!(ran.out.contains("x\\u{202e}y\\u{2066}z"), "{}", ran.out);
    assert!(!ran.out.contains(['\u{202e}', '\u{2066}']), "{}", ran.out);
}

#[test]
fn thousands_of_servers_are_placed_at_once_and_none_twice() {
    const SERVERS: usize = 2_000;
    let machine = Machine::new();
    let server = |index: usize| {
        let url = format!("https://s{index}.example/mcp");
        (format!("s{index}"), json!({"url": url}))
    };
    let servers: serde_json::Map<_, _> = (0..SERVERS).map(server).collect();
    let file = json!({"mcpServers": servers});
    machine.write("mcp.json", &file.to_string());
    machine.write("conf/tooldock.yaml", "# mine\ndata_dir: data\n");
    machine.run(&["import", "mcp.json"]).ok();
    let text = machine.text("conf/tooldock.yaml");
    assert!(text.starts_with("# mine\n"), "the comment is lost");
    let written = machine.yaml("conf/tooldock.yaml");
    let remote = written["upstreams"]["remote"].as_object().unwrap();
    assert_eq!(remote.len(), SERVERS);
    let again = machine.run(&["import", "mcp.json"]).ok();
    assert!(again.out.contains("nothing to import"), "{}", again.out);
    assert_eq!(machine.text("conf/tooldock.yaml"), text);
}
