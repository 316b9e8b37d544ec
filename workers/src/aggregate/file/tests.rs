use super::*;

fn read_text(text: &str) -> Result<AggregateSpec, String> {
    read_over(text, ServedOver::Http)
}

fn read_over(text: &str, over: ServedOver) -> Result<AggregateSpec, String> {
    let source = AggregateText {
        name: "tools.toml",
        text,
    };
    spec(source, Path::new("tools.toml"), (Path::new(""), over))
}

fn stdio(member: &Member) -> &StdioServerConfig {
    match &member.kind {
        MemberKind::Stdio(config) => config,
        other => panic!("no command: {other:?}"),
    }
}

#[test]
fn a_member_of_a_gateway_is_started_again_unless_the_file_says_otherwise() {
    for (over, unsaid) in [
        (ServedOver::Http, Restart::OnFailure),
        (ServedOver::Stdio, Restart::Never),
    ] {
        for (said, restart) in [
            ("", unsaid),
            ("restart = \"never\"", Restart::Never),
            ("restart = \"on-failure\"", Restart::OnFailure),
            ("restart = \"always\"", Restart::Always),
        ] {
            let text = format!("[[servers]]\nnamespace = \"a\"\ncommand = \"x\"\n{said}");
            let spec = read_over(&text, over).unwrap();
            assert_eq!(stdio(&spec.members[0]).restart, restart, "{over:?} {said}");
        }
    }
}

#[test]
fn servers_may_have_a_namespace_in_common_and_are_told_apart() {
    let spec = read_text(
        r#"
        servers.one = { namespace = "a", command = "x" }
        servers.a = { command = "y" }
        servers.last = { namespace = "", url = "http://127.0.0.1:1/mcp" }
        servers.more = { namespace = "", from = "calc" }
        servers.b = { namespace = "a", command = "x" }
        "#,
    );
    let spec = spec.unwrap();
    assert_eq!(spec.labels(), ["a", "a~2", "", "~2", "a~3"]);
}

#[test]
fn a_file_lists_servers_and_patterns() {
    let spec = read_text(
        r#"
        active_toolsets = ["pjpd*", "vec_search"]
        [[servers]]
        namespace = "pjpd"
        command = "python3 fake_server.py --name 'a b' | tee $LOG"
        [[servers]]
        namespace = "vec"
        command = "python3 fake_server.py"
        env = { TOKEN = "${TOKEN}", PORT = 8080, DEBUG = true }
        cwd = "sub"
        restart = "on-failure"
        isolation = "session"
        connect_timeout = "5s"
        timeout = "2m"
        [[servers]]
        namespace = ""
        url = "http://localhost:8080/mcp"
        headers = { Authorization = "Bearer ${TOKEN}" }
        "#,
    )
    .unwrap();
    let prefixes: Vec<_> = spec.members.iter().map(|member| &*member.prefix).collect();
    assert_eq!(prefixes, ["pjpd", "vec", ""]);
    assert!(spec.active.matches("pjpd_x") && !spec.active.matches("vec_index"));
    let first = stdio(&spec.members[0]);
    assert_eq!(first.command, "sh");
    assert_eq!(
        first.args,
        ["-c", "python3 fake_server.py --name 'a b' | tee $LOG"]
    );
    assert_eq!(
        (first.restart, &*first.cwd),
        (Restart::OnFailure, Path::new("."))
    );
    assert_eq!(spec.members[0].connect_timeout, CONNECT_TIMEOUT);
    let second = stdio(&spec.members[1]);
    assert_eq!(second.env["TOKEN"], Template::new("${TOKEN}"));
    assert_eq!(second.env["PORT"], Template::new("8080"));
    assert_eq!(second.env["DEBUG"], Template::new("true"));
    assert_eq!(
        (second.restart, &*second.cwd),
        (Restart::OnFailure, Path::new("./sub"))
    );
    assert_eq!(second.isolation, Isolation::Session);
    assert_eq!(second.limits.timeout, Some(Duration::from_secs(120)));
    assert_eq!(spec.members[1].connect_timeout, Duration::from_secs(5));
    let MemberKind::Remote(remote) = &spec.members[2].kind else {
        panic!("{:?}", spec.members[2]);
    };
    assert_eq!(remote.backends[0].url, "http://localhost:8080/mcp");
    assert_eq!(
        remote.headers.set["Authorization"],
        Template::new("Bearer ${TOKEN}")
    );
}

#[test]
fn servers_may_be_written_in_three_ways_and_keep_their_order() {
    let spec = read_text(
        "[servers.b]\ncommand = \"x\"\n[servers.a]\ncommand = \"y\"\nnamespace = \"z\"\n[[server]]\nnamespace = \"c\"\ncommand = \"w\"\n",
    )
    .unwrap();
    let prefixes: Vec<_> = spec.members.iter().map(|member| &*member.prefix).collect();
    assert_eq!(prefixes, ["b", "z", "c"]);
}

#[test]
fn an_empty_file_has_no_servers_and_nothing_active() {
    let spec = read_text("").unwrap();
    assert!(spec.members.is_empty() && !spec.active.matches("x"));
    assert_eq!(spec.options, AggregateOptions::default());
}

#[test]
fn switches_are_taken_and_what_is_not_said_is_left_open() {
    let options = read_text(
        "activation_scope = \"principal\"\nnotify_on_activation = false\nactivation_schemas = true\nactivation_patterns = true\ntoken_estimates = false\ntoolman_search = true\ntoolman_call = true\ntool_names = \"as_is\"",
    );
    let options = options.unwrap().options;
    let expected = AggregateOptions {
        activation_scope: Some(ActivationScope::Principal),
        notify_on_activation: false,
        activation_schemas: Some(true),
        activation_patterns: true,
        token_estimates: false,
        toolman_search: true,
        toolman_call: true,
        tool_names: ToolNames::AsIs,
    };
    assert_eq!(options, expected);
}

#[test]
fn relative_paths_start_at_the_folder_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tools.toml");
    fs::write(&file, "[[servers]]\nnamespace = \"a\"\ncommand = \"x\"\n[[servers]]\nnamespace = \"b\"\ncommand = \"x\"\ncwd = \"/tmp\"\n").unwrap();
    let spec = read(&file, ServedOver::Http).unwrap();
    assert_eq!(stdio(&spec.members[0]).cwd, folder.path());
    assert_eq!(stdio(&spec.members[1]).cwd, Path::new("/tmp"));
}

#[test]
fn what_is_wrong_is_told_by_line_and_column_with_what_to_write() {
    let server = "[[servers]]\nnamespace = \"a\"\ncommand = \"x\"\n";
    for (text, expected) in [
        ("x", "tools.toml:1:2: this is no TOML:"),
        ("a = 1\na = 2", "tools.toml:2:1: this is no TOML:"),
        (
            "toolset = []",
            "tools.toml:1:1: unknown key \"toolset\" of the file; there are",
        ),
        (
            "active_toolset = []",
            "tools.toml:1:1: unknown key \"active_toolset\" of the file; did you mean \"active_toolsets\"?",
        ),
        (
            "[[servers]]\nnamespace = \"a\"\n  comand = \"x\"",
            "tools.toml:3:3: unknown key \"comand\" of a server; did you mean \"command\"?",
        ),
        (
            "active_toolsets = \"a*\"",
            "tools.toml:1:19: active_toolsets must be a list such as [\"a_*\", \"b_*\"], and is a text",
        ),
        (
            "active_toolsets = [\"a\",\n  1]",
            "tools.toml:2:3: active_toolsets must be a list of texts in quotes, and is a number",
        ),
        (
            "active_toolsets = [\"a\", \"[\"]",
            "tools.toml:1:25: active_toolsets: invalid pattern \"[\"",
        ),
        (
            "servers = 1",
            "tools.toml:1:11: servers must be tables, each written below [[servers]]",
        ),
        ("servers = [1]", "tools.toml:1:12: a server must be a table"),
        (
            "[[servers]]\ncommand = \"x\"",
            "tools.toml:1:1: this server has no namespace: write namespace =",
        ),
        (
            "[[servers]]\nnamespace = 7",
            "tools.toml:2:13: namespace must be a text in quotes, and is a number",
        ),
        (
            "[[servers]]\nnamespace = \"ä\"\ncommand = \"x\"",
            "tools.toml:2:13: namespace must be at most 64 letters",
        ),
        (
            "[[servers]]\nnamespace = \"a\"",
            "tools.toml:1:1: the server \"a\" has neither command nor url",
        ),
        (
            "[[servers]]\nnamespace = \"a\"\ncommand = \"  \"",
            "tools.toml:3:11: command is empty",
        ),
        (
            "[[servers]]\nnamespace = \"a\"\ncommand = \"x\"\nurl = \"http://a\"",
            "tools.toml:4:7: a server has command or url, not both",
        ),
        (
            &format!("{server}restart = \"sometimes\""),
            "tools.toml:4:11: restart must be one of \"never\", \"on-failure\", \"always\"",
        ),
        (
            &format!("{server}connect_timeout = 5"),
            "tools.toml:4:19: connect_timeout must be a time such as",
        ),
        (
            &format!("{server}connect_timeout = \"soon\""),
            "tools.toml:4:19: connect_timeout must be a time such as",
        ),
        (
            &format!("{server}pin = \"x\""),
            "tools.toml:4:7: pin must be sha256:",
        ),
        (
            &format!("{server}env = [1]"),
            "tools.toml:4:7: env must be a table such as",
        ),
        (
            &format!("{server}env = {{ A = [1] }}"),
            "tools.toml:4:9: env.A must be a single value, and is a list",
        ),
        (
            &format!("{server}env = {{ \"A=B\" = \"x\" }}"),
            "tools.toml:4:9: A=B: is no variable name",
        ),
        (
            &format!("{server}env = {{ A = \"${{B\" }}"),
            "tools.toml:4:9: env.A: \"${\" is not followed by a variable name",
        ),
        (
            &format!("{server}headers = {{ A = \"x\" }}"),
            "tools.toml:4:11: headers are for a server with a url",
        ),
        (
            "[[servers]]\nnamespace = \"a\"\nurl = \"ftp://a\"",
            "tools.toml:3:7: url ",
        ),
        (
            "[[servers]]\nnamespace = \"a\"\nurl = \"http://a/mcp\"\ncwd = \".\"",
            "tools.toml:4:7: cwd is for a server with a command",
        ),
        (
            "[[servers]]\nnamespace = \"a\"\nurl = \"http://a/mcp\"\nheaders = { Host = \"a\", Connection = \"x\" }",
            "tools.toml:4:25: Connection: says how a message travels",
        ),
        (
            "[[servers]]\nnamespace = \"a\"\nnamespace = \"b\"",
            "tools.toml:3:1: this is no TOML: duplicate key",
        ),
        (
            "servers = []\n[[server]]\nnamespace = 1\n[[server]]\nnamespace = \"a\"",
            "tools.toml:3:13: namespace must be a text in quotes",
        ),
        (
            "[[servers]]\nnamespace = \"a\"\nurl = \"http://a/mcp\"\nheaders = { authorization = \"a\", Authorization = \"b\" }",
            "tools.toml:4:34: headers: Authorization and authorization are the same header",
        ),
        (
            "[[servers]]\nnamespace = \"a\"\nurl = \"http://a/mcp\"\nrestart = \"never\"",
            "tools.toml:4:11: restart is for a server with a command",
        ),
        (
            "[[servers]]\nnamespace = \"a\"\nurl = \"http://a/mcp\"\nconnect_timeout = \"1000d\"",
            "tools.toml:4:19: connect_timeout must be",
        ),
        (
            "[[servers]]\nnamespace = \"a\"\ncommand = \"x\"\ntimeout = \"1000d\"",
            "tools.toml:4:11: timeout must be",
        ),
        (
            "[[servers]]\nnamespace = \"a\"\nfrom = \"b\"\nisolation = \"shared\"",
            "tools.toml:4:13: isolation is for a server with a command",
        ),
        (
            "[[servers]]\nnamespace = \"a\"\nfrom = \"b\"\ntimeout = \"5s\"",
            "tools.toml:4:11: timeout is not for a server with from",
        ),
        (
            "[[servers]]\nnamespace = \"a\"\nfrom = \"b c\"",
            "tools.toml:3:8: from names no namespace",
        ),
        (
            "tool_names = \"any\"",
            "tools.toml:1:14: tool_names must be one of \"safe\", \"as_is\"",
        ),
        (
            "toolman_call = \"yes\"",
            "tools.toml:1:16: toolman_call must be true or false, and is a text",
        ),
    ] {
        let error = read_text(text).unwrap_err();
        assert!(error.starts_with(expected), "{text}\n  {error}");
        assert!(!error.contains('\n'), "{error}");
    }
}

#[test]
fn another_namespace_is_for_a_gateway_and_not_for_the_pipes_of_a_process() {
    let text = "[[servers]]\nnamespace = \"a\"\nfrom = \"calc\"\n";
    assert!(read_over(text, ServedOver::Http).is_ok());
    let error = read_over(text, ServedOver::Stdio).unwrap_err();
    let expected = "tools.toml:3:8: from is for an aggregate that a gateway serves over HTTP";
    assert!(error.starts_with(expected), "{error}");
}

#[test]
fn a_url_is_connected_to_within_the_servers_own_time_limit() {
    let text = "[[servers]]\nnamespace = \"a\"\nurl = \"http://a/mcp\"\nconnect_timeout = \"3s\"\n";
    let spec = read_text(text).unwrap();
    let MemberKind::Remote(config) = &spec.members[0].kind else {
        panic!("{spec:?}");
    };
    assert_eq!(config.timeouts.connect, Duration::from_secs(3));
}

#[test]
fn a_message_shows_no_value() {
    let server = "[[servers]]\nnamespace = \"a\"\ncommand = \"x\"\n";
    for text in [
        format!("{server}env = {{ \"A=B\" = \"hunter2\" }}"),
        format!("{server}env = \"hunter2\""),
        format!("{server}pin = \"hunter2\""),
        "[[servers]]\nnamespace = \"a\"\nurl = \"http://u:hunter2@a/mcp\"".to_owned(),
    ] {
        let error = read_text(&text).unwrap_err();
        assert!(!error.contains("hunter2"), "{error}");
    }
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tools.toml");
    let name = file.display().to_string();
    let error = read(&file, ServedOver::Http).unwrap_err();
    assert!(
        error.starts_with(&format!("{name}: there is no such file in ")),
        "{error}"
    );
    assert!(
        error.contains("[[servers]]") && error.contains("--config"),
        "{error}"
    );
    let error = read(folder.path(), ServedOver::Http).unwrap_err();
    assert!(error.ends_with("it is no regular file"), "{error}");
    fs::write(&file, [0xff]).unwrap();
    assert_eq!(
        read(&file, ServedOver::Http).unwrap_err(),
        format!("{name}: is no UTF-8 text")
    );
    fs::write(&file, vec![b'#'; FILE_MAX as usize + 1]).unwrap();
    assert!(
        read(&file, ServedOver::Http)
            .unwrap_err()
            .contains("is larger than")
    );
}
