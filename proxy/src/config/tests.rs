//! The sum of the layers.

use super::tests_support::{checked, served, served_dev, write};
use super::*;
use tooldock_base::yaml;

const SHIPPED: &str = include_str!("../../../conf/tooldock.yaml");

fn error(yaml: &str) -> String {
    let (_dir, file) = write(yaml);
    let text = checked(&file, &[]).expect_err(yaml).to_string();
    assert!(!text.contains('\n'), "{text}");
    text.replace(&format!("{}: ", file.display()), "FILE: ")
}

#[test]
fn the_shipped_file_is_the_default() {
    assert_eq!(
        yaml::from_str::<Config>(SHIPPED).expect("valid"),
        Config::default()
    );
}

#[test]
fn the_shipped_file_says_every_key_with_a_comment() {
    let said: yaml::Value = yaml::from_str(SHIPPED).expect("valid");
    let all = yaml::to_value(Config::default()).expect("yaml");
    assert_eq!(missing_keys(&all, &said, ""), Vec::<String>::new());
    let commented = |line: &&str| !line.trim().is_empty() && !line.contains('#');
    assert_eq!(
        SHIPPED.lines().filter(commented).collect::<Vec<_>>(),
        Vec::<&str>::new()
    );
}

/// Paths of the keys of `all` that `said` does not hold.
fn missing_keys(all: &yaml::Value, said: &yaml::Value, path: &str) -> Vec<String> {
    let yaml::Value::Mapping(all) = all else {
        return Vec::new();
    };
    let mut missing = Vec::new();
    for (key, value) in all {
        let path = format!("{path}.{}", key.as_str().unwrap_or_default());
        match said.get(key) {
            Some(said) => missing.extend(missing_keys(value, said, &path)),
            None => missing.push(path),
        }
    }
    missing
}

#[test]
fn environment_wins_over_file_wins_over_default() {
    let (_dir, file) = write("namespaces: { defaults: { timeout: 5s, max_concurrency: 2 } }");
    let effective = checked(&file, &[("TOOL_CALL_TIMEOUT_SECONDS", "7")]).expect("valid");
    let defaults = &effective.config.namespaces.defaults;
    assert_eq!(defaults.timeout.as_secs(), 7);
    assert_eq!(defaults.max_concurrency.local(), 2);
    assert_eq!(defaults.queue, 256);
    assert_eq!(effective.source.as_deref(), Some(file.as_path()));
}

#[test]
fn the_data_directorys_file_stands_between_file_and_environment() {
    let (dir, file) = write(
        "namespaces: { defaults: { timeout: 5s, queue: 9 }, overrides: { a: { queue: 1 } } }",
    );
    let data = dir.path().join("data");
    std::fs::create_dir(&data).expect("create");
    let over = "namespaces: { defaults: { timeout: 6s, max_concurrency: 3 }, overrides: { b: { queue: 2 } } }";
    std::fs::write(data.join("config.yaml"), over).expect("write");
    let effective = checked(&file, &[("NAMESPACE_MAX_CONCURRENCY", "4")]).expect("valid");
    let namespaces = &effective.config.namespaces;
    assert_eq!(namespaces.defaults.timeout.as_secs(), 6);
    assert_eq!(namespaces.defaults.queue, 9);
    assert_eq!(namespaces.defaults.max_concurrency.local(), 4);
    assert_eq!(namespaces.overrides.len(), 2);
}

#[test]
fn a_section_without_keys_changes_nothing_beside_the_data_directorys_file() {
    let (dir, file) = write("admission:\nnamespaces:\n  defaults:\n    max_concurrency: 3\n");
    let data = dir.path().join("data");
    std::fs::create_dir_all(&data).expect("create");
    std::fs::write(data.join("config.yaml"), "namespaces:\ntoolman:\n").expect("write");
    let effective = checked(&file, &[]).expect("both files can be used");
    assert_eq!(effective.data_file_problem(), None);
    assert_eq!(effective.config.admission, AdmissionConfig::default());
    let defaults = &effective.config.namespaces.defaults;
    assert_eq!(defaults.max_concurrency.local(), 3);
}

#[test]
fn the_data_directorys_file_decides_nothing_about_admission() {
    let (dir, file) = write("");
    let data = dir.path().join("data");
    std::fs::create_dir(&data).expect("create");
    let path = data.join("config.yaml");
    for (text, key) in [
        ("admission: { hosts: [x] }", "admission"),
        ("data_dir: /", "data_dir"),
    ] {
        std::fs::write(&path, text).expect("write");
        let error = checked(&file, &[]).expect_err(text).to_string();
        assert!(
            error.starts_with(&format!("{}: {key}: unknown field", path.display())),
            "{error}"
        );
    }
    std::fs::write(&path, "namespaces: { defaults: { timeout: soon } }").expect("write");
    let error = checked(&file, &[]).expect_err("no duration").to_string();
    assert!(
        error.starts_with(&format!(
            "{}: namespaces.defaults.timeout: ",
            path.display()
        )),
        "{error}"
    );
}

fn name(text: &str) -> tooldock_base::names::NamespaceName {
    text.parse().expect("a name")
}

#[test]
fn the_data_directorys_file_takes_away_and_never_adds() {
    let (dir, file) = write(
        "namespaces: { overrides: { vault: { principals: [admin] } } }\n\
         upstreams: { stdio: { db: { command: x, limits: { tools_deny: ['drop_*'] } } } }",
    );
    let data = dir.path().join("data");
    std::fs::create_dir(&data).expect("create");
    let path = data.join("config.yaml");
    let over = "namespaces: { overrides: { vault: { principals: ['*'] } }, ceilings: { timeout: 1d } }\n\
         upstreams: { stdio: { db: { limits: { tools_deny: [], timeout: 2h } }, new: { command: y } } }";
    std::fs::write(&path, over).expect("write");
    let effective = checked(&file, &[("BEARER_TOKEN", "b")]).expect("valid");
    let namespaces = &effective.config.namespaces;
    let operator = &namespaces.operator.as_ref().expect("kept").namespaces;
    let vault = &operator.overrides[&name("vault")];
    assert_eq!(vault.principals.as_deref(), Some(&["admin".to_owned()][..]));
    assert_eq!(namespaces.ceilings.timeout.as_secs(), 600);
    let servers = &effective.config.upstreams.stdio;
    assert_eq!(servers.len(), 2);
    let db = &servers[&name("db")];
    assert_eq!(db.limits.timeout.map(|it| it.as_secs()), Some(600));
    let keys = [
        "namespaces.ceilings.timeout",
        "namespaces.overrides.vault.principals",
        "upstreams.stdio.db.limits.timeout",
        "upstreams.stdio.db.limits.tools_deny",
    ];
    assert_eq!(
        effective.warnings.len(),
        keys.len(),
        "{:?}",
        effective.warnings
    );
    for (warning, key) in effective.warnings.iter().zip(keys) {
        let begins = format!("{}: {key}: ", path.display());
        assert!(warning.starts_with(&begins), "{warning}");
    }
    std::fs::remove_file(&path).expect("remove");
    let without = checked(&file, &[("BEARER_TOKEN", "b")]).expect("valid");
    assert_eq!(without.config.namespaces.operator, None);
}

#[test]
fn a_value_out_of_bounds_names_the_variable_that_gave_it() {
    let (_dir, file) = write("");
    for (variable, value, begins) in [
        (
            "NAMESPACE_MAX_CONCURRENCY",
            "0",
            "NAMESPACE_MAX_CONCURRENCY: 0 is not between 1 and 100000 (it sets namespaces.defaults.max_concurrency)",
        ),
        ("MAX_RESULT_BYTES", "1TiB", "MAX_RESULT_BYTES: "),
        ("LOG_RETENTION_DAYS", "40000", "LOG_RETENTION_DAYS: "),
        (
            "MCP_SUPPORTED_VERSIONS",
            "2024-11-05",
            "MCP_SUPPORTED_VERSIONS: ",
        ),
        // The address is that of another listener, and the variable moved the first one there.
        (
            "CORE_PORT",
            "8001",
            "listeners[1].address: 127.0.0.1:8001 is taken",
        ),
        ("TOOLDOCK_METRICS_PORT", "8000", "TOOLDOCK_METRICS_PORT: "),
    ] {
        let error = checked(&file, &[(variable, value)])
            .expect_err(variable)
            .to_string();
        assert!(
            error.starts_with(begins) && error.contains(variable),
            "{error}"
        );
    }
    let (_dir, file) = write("namespaces: { defaults: { max_concurrency: 0 } }");
    let error = checked(&file, &[("LOG_LEVEL", "debug")])
        .expect_err("zero")
        .to_string();
    assert!(
        error.starts_with("namespaces.defaults.max_concurrency: "),
        "{error}"
    );
}

#[test]
fn a_kept_token_replaces_the_one_made_and_outlives_a_reload() {
    let (_dir, file) = write("");
    let kept = GeneratedTokens::one().expect("randomness");
    let mut effective = served_dev(&file, &[]).expect("valid");
    effective.keep_bearer(kept.clone());
    assert_eq!(effective.bearer.as_ref(), Some(&kept));
    assert_eq!(
        effective.reload().expect("valid").bearer,
        Some(kept.clone())
    );
    let mut own = served_dev(&file, &[("BEARER_TOKEN", "mine")]).expect("valid");
    own.keep_bearer(kept);
    assert_eq!(own.bearer.expect("set").expose(), "mine");
}

#[test]
fn a_token_in_a_file_is_read_again_at_a_reload() {
    let (dir, file) = write("");
    let token = dir.path().join("token");
    std::fs::write(&token, "one\n").expect("write");
    let path = token.to_str().expect("text");
    let effective = served(&file, Role::All, &[("BEARER_TOKEN_FILE", path)]).expect("valid");
    assert_eq!(effective.bearer.as_ref().expect("set").expose(), "one");
    std::fs::write(&token, "two\n").expect("write");
    let again = effective.reload().expect("valid");
    assert_eq!(again.bearer.as_ref().expect("set").expose(), "two");
    std::fs::remove_file(&token).expect("remove");
    let error = again.reload().expect_err("gone").to_string();
    assert!(error.starts_with("BEARER_TOKEN_FILE: "), "{error}");
}

#[test]
fn a_data_directorys_file_that_is_no_file_is_refused() {
    let (dir, file) = write("");
    std::fs::create_dir_all(dir.path().join("data/config.yaml")).expect("create");
    let error = checked(&file, &[]).expect_err("a directory").to_string();
    assert!(error.ends_with("not a regular file"), "{error}");
}

#[test]
fn a_named_file_must_exist() {
    let (dir, _) = write("");
    let missing = dir.path().join("other.yaml");
    let error = checked(&missing, &[]).expect_err("missing").to_string();
    assert!(
        error.starts_with(&format!("{}: ", missing.display())),
        "{error}"
    );
}

#[test]
fn a_file_that_is_gone_at_reload_does_not_open_what_it_closed() {
    let (_dir, file) = write("admission: { hosts: [gw.example] }");
    let effective = served(&file, Role::All, &[("BEARER_TOKEN", "b")]).expect("valid");
    std::fs::remove_file(&file).expect("remove");
    assert!(effective.reload().is_err());
}

#[test]
fn a_reload_applies_no_rule_of_a_new_address_to_the_open_socket() {
    let listener = |address: &str, auth: &str| {
        format!(
            "listeners: [{{ name: a, address: '{address}', profile: core, auth: [{auth}] }}]\n\
             admission: {{ origins: [] }}"
        )
    };
    let (_dir, file) = write(&listener("0.0.0.0:1", "bearer"));
    let effective = served(&file, Role::All, &[("BEARER_TOKEN", "b")]).expect("valid");
    std::fs::write(&file, listener("127.0.0.1:1", "none")).expect("write");
    let again = effective.reload().expect("valid");
    assert_eq!(again.config.listeners, effective.config.listeners);
}

#[test]
fn a_reload_that_would_open_a_socket_to_everyone_is_refused() {
    let file_with = |address: &str, allow: &str| {
        format!(
            "listeners: [{{ name: a, address: '{address}', profile: core, auth: [none] }}]\n\
             admission: {{ origins: [], cidrs: {{ allow: [{allow}] }} }}"
        )
    };
    let (_dir, file) = write(&file_with("0.0.0.0:1", "10.0.0.0/8"));
    let effective = served(&file, Role::All, &[("BEARER_TOKEN", "b")]).expect("valid");
    // Valid for a start, but the socket that stays open is the old one.
    std::fs::write(&file, file_with("127.0.0.1:1", "")).expect("write");
    let error = effective
        .reload()
        .expect_err("open to everyone")
        .to_string();
    assert!(error.starts_with("listeners[0].auth: "), "{error}");
}

#[test]
fn a_reload_keeps_the_tokens_that_were_made() {
    let (_dir, file) = write("");
    let effective = served_dev(&file, &[]).expect("valid");
    let again = effective.reload().expect("valid");
    assert!(effective.bearer.is_some());
    assert_eq!(again.bearer, effective.bearer);
    assert_eq!(again.manager_token, effective.manager_token);
}

#[test]
fn errors_name_file_and_key() {
    for (yaml, begins) in [
        (
            "admission: { limits: { body: 4MX } }",
            "FILE: admission.limits.body: invalid value \"4MX\", expected a size",
        ),
        ("listners: []", "FILE: listners: unknown field `listners`"),
        (
            "workers: { pythn: x }",
            "FILE: workers.pythn: unknown field `pythn`",
        ),
        (
            "listeners: [{ name: a, address: '127.0.0.1:1', profile: core, tls: { cert: c } }]",
            "FILE: listeners[0].tls: missing field `key`",
        ),
        (
            "listeners: [{ name: a, address: localhost, profile: core }]",
            "FILE: listeners[0].address: ",
        ),
        ("threads: 0", "FILE: threads: invalid value"),
        (
            "sessions: { ttl: soon }",
            "FILE: sessions.ttl: invalid value \"soon\", expected a duration",
        ),
        (
            "sessions: { store: 'redis://h/x' }",
            "sessions.store: the database of the Redis URL is no number",
        ),
        ("a: [", "FILE: "),
        ("threads: 1\nthreads: 2", "FILE: "),
    ] {
        let error = error(yaml);
        assert!(error.starts_with(begins), "{yaml}\n{error}");
    }
}

#[test]
fn a_token_put_where_its_entry_belongs_is_not_shown() {
    for tokens in ["hush", "[hush]", "{ ci: hush }"] {
        let error = error(&format!("admission: {{ tokens: {tokens} }}"));
        assert!(
            error.starts_with("FILE: admission.tokens") && !error.contains("hush"),
            "{error}"
        );
    }
}

#[test]
fn a_token_put_where_its_digest_belongs_is_not_shown() {
    let error = error("admission: { tokens: [{ name: ci, sha256: hush, namespaces: ['*'] }] }");
    assert!(
        error.starts_with("FILE: admission.tokens[0]") && !error.contains("hush"),
        "{error}"
    );
}

#[test]
fn serve_needs_a_token_and_check_only_says_so() {
    let (_dir, file) = write("");
    let error = served(&file, Role::All, &[])
        .expect_err("no token")
        .to_string();
    assert!(error.starts_with("BEARER_TOKEN: not set"), "{error}");
    let warnings = checked(&file, &[]).expect("valid").warnings;
    assert!(
        warnings
            .iter()
            .any(|w| w.starts_with("BEARER_TOKEN: not set")),
        "{warnings:?}"
    );

    let token = format!(
        "admission: {{ tokens: [{{ name: ci, sha256: {}, namespaces: ['*'] }}] }}",
        "ab".repeat(32)
    );
    let (_dir, file) = write(&token);
    assert!(
        served(&file, Role::All, &[])
            .expect("one named token suffices")
            .bearer
            .is_none()
    );
}

#[test]
fn a_core_process_needs_the_manager_token() {
    let (_dir, file) = write("");
    let bearer = ("BEARER_TOKEN", "b");
    let error = served(&file, Role::Core, &[bearer])
        .expect_err("no manager token")
        .to_string();
    assert!(
        error.starts_with("MANAGER_INTERNAL_TOKEN: not set"),
        "{error}"
    );
    let all = [
        bearer,
        ("MANAGER_INTERNAL_TOKEN", "m"),
        ("SECRETS_KEY", "k"),
    ];
    let effective = served(&file, Role::Core, &all).expect("valid");
    assert_eq!(effective.manager_token.expose(), "m");
    assert!(!effective.generated.manager);
}

#[test]
fn the_secrets_key_is_needed_where_the_parts_run_apart_or_there_are_secrets() {
    let (dir, file) = write("");
    let tokens = [("BEARER_TOKEN", "b"), ("MANAGER_INTERNAL_TOKEN", "m")];
    let with = |role, more: &[(&str, &str)]| served(&file, role, &[&tokens, more].concat());
    let refused = |role| {
        let error = with(role, &[]).expect_err("no key").to_string();
        assert!(error.starts_with("SECRETS_KEY: is required"), "{error}");
        error
    };
    assert!(with(Role::All, &[]).is_ok(), "nothing to protect yet");
    refused(Role::Core);
    let insecure = ("ALLOW_INSECURE_SECRETS", "1");
    let effective = with(Role::Core, &[insecure]).expect("valid");
    let warned = |it: &String| it.starts_with("ALLOW_INSECURE_SECRETS is set");
    assert!(effective.warnings.iter().any(warned));

    std::fs::create_dir(dir.path().join("data")).expect("a folder");
    std::fs::write(dir.path().join("data/secrets.enc"), "").expect("written");
    assert!(refused(Role::All).contains("data/secrets.enc holds secrets"));
    let key = dir.path().join("key");
    std::fs::write(&key, "from a file\n").expect("written");
    let from_file = ("SECRETS_KEY_FILE", key.to_str().expect("text"));
    let effective = with(Role::All, &[from_file]).expect("valid");
    let key = effective.secrets.key.expect("a key");
    assert_eq!(key.expose(), "from a file");
    // A part of the data directory can be checked without the key.
    let effective = checked(&file, &tokens).expect("valid");
    let missing = effective.secrets.missing_for(&effective.data_dir);
    assert!(missing.is_some_and(|it| it.contains("data/secrets.enc holds secrets")));
}

#[test]
fn a_single_process_makes_its_own_manager_token() {
    let (_dir, file) = write("");
    let effective = served(&file, Role::All, &[("BEARER_TOKEN", "b")]).expect("valid");
    assert_eq!(effective.manager_token.expose().len(), 64);
    assert_eq!(
        effective.generated,
        GeneratedMarks {
            bearer: false,
            manager: true
        }
    );
    let other = served(&file, Role::All, &[("BEARER_TOKEN", "b")]).expect("valid");
    assert_ne!(effective.manager_token, other.manager_token);
}

#[test]
fn dev_makes_both_tokens() {
    let (_dir, file) = write("");
    let effective = served_dev(&file, &[]).expect("valid");
    assert_eq!(
        effective.generated,
        GeneratedMarks {
            bearer: true,
            manager: true
        }
    );
    assert_eq!(effective.bearer.expect("made").expose().len(), 64);
}

#[test]
fn the_examples_tokens_are_warned_about() {
    let (_dir, file) = write("");
    let variables = [
        ("BEARER_TOKEN", "change_me"),
        ("MANAGER_INTERNAL_TOKEN", "change_me_internal"),
    ];
    let warnings = served(&file, Role::All, &variables)
        .expect("valid")
        .warnings;
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(
        warnings[0].starts_with("BEARER_TOKEN: ")
            && warnings[1].starts_with("MANAGER_INTERNAL_TOKEN: ")
    );
}

#[test]
fn no_debug_output_shows_a_token() {
    let (_dir, file) = write("");
    let effective = served(
        &file,
        Role::All,
        &[("BEARER_TOKEN", "hush"), ("MANAGER_INTERNAL_TOKEN", "hush")],
    );
    let shown = format!("{:?}", effective.expect("valid"));
    assert!(!shown.contains("hush"), "{shown}");
}

#[test]
fn each_role_opens_its_listeners() {
    let config = Config::default();
    let names = |role| {
        config
            .served_listeners(role)
            .map(|(_, l)| l.name.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(Role::All), ["core", "manager", "metrics"]);
    assert_eq!(names(Role::Core), ["core", "metrics"]);
    assert_eq!(names(Role::Manager), ["manager", "metrics"]);
}

#[test]
fn the_data_directory_is_absolute() {
    let (_dir, file) = write("");
    let effective = checked(&file, &[("DATA_DIR", "somewhere")]).expect("valid");
    assert!(effective.data_dir.is_absolute() && effective.data_dir.ends_with("somewhere"));
}

#[test]
fn the_shipped_file_shows_a_remote_server_with_every_key_at_its_default() {
    let from = SHIPPED.find("  # search:").expect("the example is there");
    let lines = SHIPPED[from..]
        .lines()
        .take_while(|line| line.starts_with("  # "));
    let example: String = lines.map(|line| format!("{}\n", &line[4..])).collect();
    let servers: tooldock_workers::remote::RemoteServersConfig =
        yaml::from_str(&example).expect("valid");
    let shown = tooldock_workers::remote::RemoteServerConfig {
        backends: Vec::new(),
        ..servers["search"].clone()
    };
    // Without a key of its own, a server has the pins of namespaces.defaults.
    let expected = tooldock_workers::remote::RemoteServerConfig {
        pins: Some(tooldock_base::config::PinMode::Warn),
        ..Default::default()
    };
    assert_eq!(shown, expected);
}

#[test]
fn the_shipped_file_shows_an_api_with_every_key_at_its_default() {
    let from = SHIPPED.find("  # petstore:").expect("the example is there");
    let lines = SHIPPED[from..]
        .lines()
        .take_while(|line| line.starts_with("  # "));
    let example: String = lines.map(|line| format!("{}\n", &line[4..])).collect();
    let apis: tooldock_workers::openapi::OpenApiServersConfig =
        yaml::from_str(&example).expect("valid");
    let shown = tooldock_workers::openapi::OpenApiServerConfig {
        spec: String::new(),
        ..apis["petstore"].clone()
    };
    // The example shows `pins: warn`, the value of namespaces.defaults, which applies to an API without `pins`.
    let expected = tooldock_workers::openapi::OpenApiServerConfig {
        pins: Some(tooldock_base::config::PinMode::Warn),
        ..Default::default()
    };
    assert_eq!(shown, expected);
    let said: yaml::Value = yaml::from_str(&example).expect("valid");
    let all = yaml::to_value(&apis).expect("yaml");
    assert_eq!(missing_keys(&all, &said, ""), Vec::<String>::new());
}

#[test]
fn the_shipped_file_shows_a_stdio_server_with_every_key_at_its_default() {
    let from = SHIPPED.find("  # time:").expect("the example is there");
    let lines = SHIPPED[from..]
        .lines()
        .take_while(|line| line.starts_with("  # "));
    let example: String = lines.map(|line| format!("{}\n", &line[4..])).collect();
    let servers: tooldock_workers::external::StdioServersConfig =
        yaml::from_str(&example).expect("valid");
    let shown = tooldock_workers::external::StdioServerConfig {
        command: String::new(),
        ..servers["time"].clone()
    };
    // Without keys of its own, a server has the sandbox and the pins of namespaces.defaults.
    let expected = tooldock_workers::external::StdioServerConfig {
        sandbox: Some(tooldock_base::config::Sandbox::default()),
        pins: Some(tooldock_base::config::PinMode::Warn),
        ..Default::default()
    };
    assert_eq!(shown, expected);
    let said: yaml::Value = yaml::from_str(&example).expect("valid");
    let all = yaml::to_value(&servers).expect("yaml");
    assert_eq!(missing_keys(&all, &said, ""), Vec::<String>::new());
}
