//! `serve --dev`: example namespaces for an empty data directory, a token that is kept for later runs, and printed commands to
//! paste.
//!
//! A generated token is stored in the data directory, so that a client's configuration remains valid, and printed to standard
//! output, never to the log. A token that the operator has set is not printed; the name of its variable is printed instead.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs::{self, File};
use std::io;
use std::path::Path;

use anyhow::Context;
use tooldock_base::data_dir::{DataDir, STARTER};
use tooldock_base::names::NamespaceName;
use tooldock_base::secret::Secret;

use crate::config::dev_tokens::TOKEN_FILE;
use crate::config::{Effective, ListenAddress, ListenerConfig, ProfileName};

/// The example namespaces, with their files. They need no account or key of another service.
const EXAMPLES: &[(&str, &[(&str, &str)])] = &[
    (
        "basic-tool",
        &[(
            "hello.py",
            include_str!("../../conf/examples/basic-tool/hello.py"),
        )],
    ),
    (
        "full-server",
        &[(
            "notes.py",
            include_str!("../../conf/examples/full-server/notes.py"),
        )],
    ),
    (
        "multi-tool",
        &[
            (
                "math_tools.py",
                include_str!("../../conf/examples/multi-tool/math_tools.py"),
            ),
            (
                "string_tools.py",
                include_str!("../../conf/examples/multi-tool/string_tools.py"),
            ),
        ],
    ),
];

/// Creates the example namespaces, if the data directory is used for the first time. Must be called before namespaces are
/// scanned.
///
/// # Errors
///
/// If a file cannot be written. Each namespace is created either completely or not at all.
pub(crate) fn place_examples(data: &DataDir) -> anyhow::Result<()> {
    if data.is_first_start() {
        copy_examples(&data.tools_dir()).context("cannot copy the example tools")?;
    }
    Ok(())
}

fn copy_examples(tools: &Path) -> io::Result<()> {
    for (namespace, files) in EXAMPLES {
        let target = tools.join(namespace);
        if target.symlink_metadata().is_ok() {
            continue;
        }
        // The files are written into a folder whose name begins with a dot: a scan ignores it until it is complete and renamed.
        let staging = tools.join(format!(".{namespace}.new"));
        match fs::remove_dir_all(&staging) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => fs::create_dir(&staging)?,
        }
        for (name, text) in *files {
            let file = staging.join(name);
            fs::write(&file, text)?;
            File::open(&file)?.sync_all()?;
        }
        File::open(&staging)?.sync_all()?;
        fs::rename(&staging, &target)?;
    }
    File::open(tools)?.sync_all()
}

/// Returns the namespace for the commands to paste: the starter namespace, or the first folder if the data directory has others
/// in its place.
fn shown_namespace(tools: &Path) -> String {
    let entries = fs::read_dir(tools).into_iter().flatten().flatten();
    let folders = entries.filter(|it| it.path().is_dir());
    let names = folders.filter_map(|it| it.file_name().into_string().ok());
    let names = names.filter(|it| it.parse::<NamespaceName>().is_ok());
    let names: BTreeSet<_> = names.collect();
    match names.first() {
        Some(first) if !names.contains(STARTER) => first.clone(),
        _ => STARTER.to_owned(),
    }
}

/// Returns the text that `serve --dev` prints: URLs, the token, and commands to paste.
pub(crate) fn announce(effective: &Effective) -> String {
    let mut listeners = effective.served_listeners().map(|(_, listener)| listener);
    let Some(listener) = listeners.find(|listener| listener.profile == ProfileName::Core) else {
        return String::new();
    };
    let url = match (&listener.address, &listener.tls) {
        (ListenAddress::Tcp(_), _) => listener.url(),
        // For a Unix socket, curl needs a separate option for the path; the host in the URL is then only a name.
        (ListenAddress::Unix(_), None) => "http://localhost".to_owned(),
        (ListenAddress::Unix(_), Some(_)) => "https://localhost".to_owned(),
    };
    let curl = curl(listener);
    let generated = effective.generated;
    let bearer = token_text(effective.bearer.as_ref(), generated.bearer, "BEARER_TOKEN");
    let manager = token_text(
        Some(&effective.manager_token),
        generated.manager,
        "MANAGER_INTERNAL_TOKEN",
    );
    let tools = effective.data_dir.join("tools");
    let namespace = shown_namespace(&tools);
    let client = serde_json::json!({"mcpServers": {format!("tooldock-{namespace}"): {
        "type": "http",
        "url": format!("{url}/mcp"),
        "headers": {"Authorization": format!("Bearer {bearer}"), "X-Namespace": namespace},
    }}});
    let call = match namespace == STARTER {
        true => format!(
            "Call a tool:\n\
             {curl} {url}/tools/say_hello -H \"Authorization: Bearer {bearer}\" -H 'X-Namespace: {namespace}' \
             -H 'Content-Type: application/json' -d '{{\"name\":\"Ada\"}}'\n\
             \n"
        ),
        false => String::new(),
    };
    let stream = if effective.legacy_sse {
        format!(
            "Open a stream (Ctrl-C ends it):\n\
             {curl} -N {url}/sse -H \"Authorization: Bearer {bearer}\" -H 'X-Namespace: {namespace}'\n\n"
        )
    } else {
        String::new()
    };
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write!(
        text,
        "\n\
         {page}\
         ToolDock serves {url}\n\
         Tools live in   {tools}\n\
         Bearer token    {bearer}{kept}\n\
         \n\
         {call}\
         List a namespace's tools:\n\
         {curl} {url}/tools -H \"Authorization: Bearer {bearer}\" -H 'X-Namespace: {namespace}'\n\
         \n\
         {stream}\
         Changes in the tools directory are reloaded by themselves. A reload at once:\n\
         {curl} -X POST {url}/reload -H \"Authorization: Bearer {bearer}\" -H \"X-Manager-Token: {manager}\"\n\
         \n\
         Configuration of Claude Code (.mcp.json) and Cursor (mcp.json); docs/clients.md has others:\n\
         {client}\n\
         \n",
        page = page(effective),
        tools = tools.display(),
        kept = match generated.bearer {
            true => format!(
                " (kept in {})",
                effective.data_dir.join(TOKEN_FILE).display()
            ),
            false => String::new(),
        },
    );
    text
}

/// Returns a line with the address of the web UI; an empty text if the web UI is not served.
fn page(effective: &Effective) -> String {
    let mut listeners = effective.served_listeners().map(|(_, listener)| listener);
    match listeners.find(|listener| listener.profile == ProfileName::V1Web) {
        Some(listener) => format!(
            "Open            {}/ in a browser: user {}, password: the bearer token\n",
            listener.url(),
            effective.web.user
        ),
        None => String::new(),
    }
}

/// Returns a token as it is printed: the token itself if this process generated it, otherwise a reference to its environment
/// variable.
fn token_text(token: Option<&Secret>, generated: bool, variable: &str) -> String {
    match token {
        // A generated token consists of hexadecimal digits, which need no quoting in a shell.
        Some(token) if generated => token.expose().to_owned(),
        _ => format!("${{{variable}}}"),
    }
}

/// Returns a curl command with the options for this listener. It trusts the listener's own certificate, since no public authority
/// certifies a loopback address.
fn curl(listener: &ListenerConfig) -> String {
    let quoted = |path: &Path| path.display().to_string().replace('\'', r"'\''");
    let mut curl = "curl -s".to_owned();
    if let ListenAddress::Unix(path) = &listener.address {
        let _ = write!(curl, " --unix-socket '{}'", quoted(path));
    }
    if let Some(tls) = &listener.tls {
        let certificate = &tls.default_certificate().cert;
        let _ = write!(curl, " --cacert '{}'", quoted(certificate));
    }
    curl
}

#[cfg(test)]
mod tests {
    use crate::config::tests_support::{served_dev, write};

    use super::*;

    #[test]
    fn the_lines_name_a_namespace_that_is_there() {
        let (dir, file) = write("");
        let effective = served_dev(&file, &[]).expect("valid");
        assert!(announce(&effective).contains("X-Namespace: shared"));
        for name in ["zoo", "my-tools", ".hidden", "No Name"] {
            fs::create_dir_all(dir.path().join("data/tools").join(name)).expect("made");
        }
        let text = announce(&effective);
        assert!(text.contains("X-Namespace: my-tools"), "{text}");
        assert!(
            !text.contains("shared") && !text.contains("say_hello"),
            "{text}"
        );
    }

    #[test]
    fn generated_tokens_are_printed_and_the_lines_name_the_address() {
        let (_dir, file) = write("");
        let effective = served_dev(&file, &[("PORT", "4711")]).expect("valid");
        let bearer = effective.bearer.as_ref().expect("made").expose();
        let text = announce(&effective);
        assert!(
            text.contains("curl -s http://127.0.0.1:4711/tools/say_hello "),
            "{text}"
        );
        assert!(
            text.contains(&format!("\"Authorization: Bearer {bearer}\"")),
            "{text}"
        );
        assert!(
            text.contains(&format!(
                "X-Manager-Token: {}",
                effective.manager_token.expose()
            )),
            "{text}"
        );
        assert!(
            text.contains("curl -s -N http://127.0.0.1:4711/sse -H \"Auth"),
            "{text}"
        );
        let json = text
            .lines()
            .find(|line| line.starts_with('{'))
            .expect("client configuration");
        let client: serde_json::Value = serde_json::from_str(json).expect("JSON");
        assert_eq!(
            client["mcpServers"]["tooldock-shared"]["url"],
            "http://127.0.0.1:4711/mcp"
        );
    }

    #[test]
    fn the_web_ui_is_on_and_its_address_comes_first_unless_the_file_lists_listeners() {
        let (_dir, file) = write("");
        let effective = served_dev(&file, &[("WEB_PORT", "4712")]).expect("valid");
        let first = "Open            http://127.0.0.1:4712/ in a browser: user admin, password: the bearer token";
        let text = announce(&effective);
        assert_eq!(text.trim_start().lines().next(), Some(first), "{text}");

        let (_dir, file) =
            write("listeners: [{ name: a, address: \"127.0.0.1:4713\", profile: core }]");
        let effective = served_dev(&file, &[]).expect("valid");
        assert!(!announce(&effective).contains("in a browser"));
    }

    #[test]
    fn a_port_that_another_program_has_does_not_end_a_trial_run_and_a_reload_keeps_the_port() {
        let usual = ProfileName::V1Web.usual_port();
        // Another test or program may have the port already.
        let _taken = std::net::TcpListener::bind(("127.0.0.1", usual));
        let (_dir, file) = write("");
        let effective = served_dev(&file, &[]).expect("valid");
        let port = |effective: &Effective| {
            let mut listeners = effective.config.listeners.iter();
            let web = listeners.find(|it| it.profile == ProfileName::V1Web);
            web.expect("a listener").address.port()
        };
        assert_ne!(port(&effective), Some(usual));
        let reloaded = effective.reload().expect("valid");
        assert_eq!(port(&reloaded), port(&effective));
    }

    #[test]
    fn a_token_of_the_operator_is_named_not_printed() {
        let (_dir, file) = write("");
        let effective = served_dev(
            &file,
            &[
                ("BEARER_TOKEN", "hush"),
                ("MANAGER_INTERNAL_TOKEN", "hush2"),
            ],
        )
        .expect("valid");
        let text = announce(&effective);
        assert!(!text.contains("hush"), "{text}");
        assert!(text.contains("Bearer ${BEARER_TOKEN}\""), "{text}");
    }

    #[test]
    fn examples_appear_whole_and_leave_what_is_there_alone() {
        let tools = tempfile::tempdir().expect("directory");
        let own = tools.path().join("basic-tool");
        fs::create_dir(&own).expect("create");
        // A leftover of a crash half way.
        fs::create_dir(tools.path().join(".multi-tool.new")).expect("create");
        copy_examples(tools.path()).expect("copied");
        assert_eq!(fs::read_dir(&own).expect("read").count(), 0);
        let mut names: Vec<_> = fs::read_dir(tools.path())
            .expect("read")
            .map(|entry| {
                entry
                    .expect("entry")
                    .file_name()
                    .into_string()
                    .expect("name")
            })
            .collect();
        names.sort();
        assert_eq!(names, ["basic-tool", "full-server", "multi-tool"]);
        assert_eq!(
            fs::read_dir(tools.path().join("multi-tool"))
                .expect("read")
                .count(),
            2
        );
    }

    #[test]
    fn dev_mode_reloads_files_sooner_unless_the_configuration_sets_the_delay() {
        for (written, variables, expected) in [
            ("{}", &[][..], 200),
            ("watcher: { enabled: true }", &[], 200),
            ("watcher: { debounce: 3s }", &[], 3000),
            ("{}", &[("FS_WATCHER_DEBOUNCE_MS", "50")], 50),
        ] {
            let (_dir, file) = write(written);
            let effective = served_dev(&file, variables).expect("valid");
            let debounce = effective.config.watcher.debounce;
            assert_eq!(debounce.as_millis(), expected, "{written}");
        }
    }
}
