//! Import of servers that run as a command.

use std::collections::BTreeMap;
use std::path::Path;

use tooldock_base::yaml::{Mapping, Value as Yaml};

use crate::Kind;
use crate::credential;
use crate::entry::Reader;
use crate::tree::{Node, Value};
use crate::variable::{Text, is_name};

/// A command with its arguments, as a client's file contains them.
pub(crate) struct CommandLine {
    /// The program and its arguments, with their line numbers.
    words: Vec<(String, usize)>,
    /// Environment variables from the command's object, as older files of Zed have them.
    env: Option<Node>,
}

/// Keys whose values are environment variables of the server.
const ENV: [&str; 3] = ["env", "envs", "environment"];

impl Reader<'_> {
    /// Returns the command of an entry and marks its keys as read.
    pub(crate) fn command(&mut self) -> Option<CommandLine> {
        let node = self.take("command").or_else(|| self.take("cmd"))?;
        let mut env = None;
        let mut words = match &node.value {
            // OpenCode writes the command as a list.
            Value::List(_) => node.scalars()?,
            // Zed writes the command as an object `{ path, args, env }`.
            Value::Map(_) => {
                let path = node.get("path")?;
                env = node.get("env").cloned();
                let mut words = vec![(path.scalar()?, path.line)];
                words.extend(node.get("args").and_then(Node::scalars).unwrap_or_default());
                words
            }
            _ => vec![(node.scalar()?, node.line)],
        };
        if let Some(args) = self.take("args") {
            match args.scalars() {
                Some(args) => words.extend(args),
                None => self.lost(
                    args.line,
                    "args",
                    "must be a list of texts, and is left out",
                ),
            }
        }
        // Some files contain a complete command line in the key for the command.
        if let [(line, at)] = words.as_slice()
            && line.contains(char::is_whitespace)
            && !line.starts_with(['/', '.', '~', '$'])
            && let Some(split) = shlex::split(line)
        {
            words = split.into_iter().map(|word| (word, *at)).collect();
        }
        // Windows files start `npx` as `cmd /c npx …`.
        let is_cmd = words.first().is_some_and(|(word, _)| {
            word.eq_ignore_ascii_case("cmd") || word.eq_ignore_ascii_case("cmd.exe")
        });
        if is_cmd
            && words
                .get(1)
                .is_some_and(|(word, _)| word.eq_ignore_ascii_case("/c"))
        {
            words.drain(..2);
        }
        let first = words.first()?;
        (!first.0.trim().is_empty()).then_some(CommandLine { words, env })
    }

    /// Writes the gateway's keys for a server that runs as a command.
    pub(crate) fn stdio(&mut self, command: CommandLine) -> Option<Kind> {
        let env = self.environment(command.env.as_ref());
        let words: Vec<(Text, usize)> = command
            .words
            .iter()
            .enumerate()
            .map(|(at, (word, line))| {
                let key = match at {
                    0 => "command".to_owned(),
                    at => format!("args[{}]", at - 1),
                };
                (self.parsed(word, *line, &key), *line)
            })
            .collect();
        if let Some(remote) = self.as_mcp_remote(&words, &env) {
            return Some(remote);
        }
        let cwd = self.working_directory();
        self.words(words, env, cwd);
        Some(Kind::Stdio)
    }

    /// Reads the environment variables of the server: literal texts, references to variables, and credentials, which are moved to
    /// the secrets.
    fn environment(&mut self, beside: Option<&Node>) -> BTreeMap<String, Text> {
        let mut env = BTreeMap::new();
        let nodes: Vec<Node> = ENV
            .iter()
            .filter_map(|key| self.take(key).cloned())
            .chain(beside.cloned())
            .collect();
        for node in nodes {
            if !node.is_map() {
                self.lost(
                    node.line,
                    "env",
                    "must be a map of names to texts, and is left out",
                );
            }
            for member in node.members() {
                let key = format!("env.{}", member.key);
                if matches!(member.node.value, Value::Null) {
                    continue;
                }
                let Some(value) = member.node.scalar() else {
                    self.lost(member.line, &key, "must be a single value, and is left out");
                    continue;
                };
                if !is_name(&member.key) && member.key.contains(['=', '\0'])
                    || member.key.is_empty()
                {
                    self.lost(
                        member.line,
                        &key,
                        "is no name of a variable, and is left out",
                    );
                    continue;
                }
                let text = self.parsed(&value, member.line, &key);
                let text = match text.plain() {
                    Some(literal) if credential::is_secret(&member.key, &literal) => {
                        Text::around("", &self.keep(&member.key, &literal), "")
                    }
                    Some(_) => text,
                    None if text.literals().any(|it| credential::is_secret("", it)) => {
                        let why = "mixes a credential with a variable, and is left out: store the whole value by tooldock secrets set";
                        self.lost(member.line, &key, why);
                        continue;
                    }
                    None => text,
                };
                env.insert(member.key.clone(), text);
            }
        }
        // Goose and Codex list the names of variables that the server gets from the client's environment or secret store.
        for key in ["env_keys", "env_vars"] {
            let Some(node) = self.take(key) else { continue };
            let Value::List(items) = &node.value else {
                self.lost(node.line, key, "must be a list of names, and is left out");
                continue;
            };
            for item in items {
                let name = item.scalar().or_else(|| item.get("name")?.scalar());
                match name.filter(|it| is_name(it)) {
                    Some(name) if env.contains_key(&name) => {}
                    Some(name) => {
                        let text = self.parsed(&format!("${{{name}}}"), item.line, key);
                        env.insert(name, text);
                    }
                    None => self.lost(item.line, key, "has an entry that is no name of a variable"),
                }
            }
        }
        env
    }

    fn working_directory(&mut self) -> Option<String> {
        let key = ["cwd", "workingDirectory", "working_directory"]
            .into_iter()
            .find(|key| self.peek(key).is_some())?;
        let node = self.take(key)?;
        let text = node.scalar().unwrap_or_default();
        match self.parsed(&text, node.line, key).plain() {
            Some(path) if !path.is_empty() => {
                let path = self.absolute(&self.entry.base, &path);
                Some(path.to_string_lossy().into_owned())
            }
            _ => {
                self.lost(
                    node.line,
                    key,
                    "must be a path without variables, and is left out",
                );
                None
            }
        }
    }

    /// Writes the entry's keys for command, arguments, environment variables and working directory.
    fn words(
        &mut self,
        mut words: Vec<(Text, usize)>,
        mut env: BTreeMap<String, Text>,
        cwd: Option<String>,
    ) {
        let base = cwd
            .clone()
            .map_or_else(|| self.entry.base.clone(), Into::into);
        if let Some((command, _)) = words.first_mut()
            && let Some(path) = command.plain().filter(|it| it.contains('/'))
        {
            *command = Text::of(&self.absolute(&base, &path).to_string_lossy());
        }
        let plain: Vec<Option<String>> = words.iter().map(|(word, _)| word.plain()).collect();
        let has_relative = plain.iter().skip(1).flatten().any(|it| is_relative(it));
        let shown: Vec<&str> = plain
            .iter()
            .skip(1)
            .map(|it| it.as_deref().unwrap_or(""))
            .collect();
        let mut lines = Vec::new();
        for (at, found) in credential::in_arguments(&shown).into_iter().enumerate() {
            // Arguments with variables are processed by the next loop.
            let Some(found) = found.filter(|_| plain[at + 1].is_some()) else {
                continue;
            };
            let name = self.keep_beside(&env, &found.name, &found.value);
            env.entry(name.clone())
                .or_insert_with(|| Text::around("", &name, ""));
            let (word, line) = &mut words[at + 1];
            *word = Text::around(&found.before, &name, &found.after);
            lines.push((*line, format!("args[{at}]"), "is a credential, and goes into the secrets store; since every user of the machine can read arguments, prefer a variable if the server takes one"));
        }
        for at in (1..words.len()).filter(|at| plain[*at].is_none()) {
            let option = plain[at - 1].as_deref().unwrap_or("");
            let word = words[at].0.with_literals(|literal| {
                let found = credential::in_arguments(&[option, literal]).pop()??;
                let name = self.keep_beside(&env, &found.name, &found.value);
                env.entry(name.clone())
                    .or_insert_with(|| Text::around("", &name, ""));
                Some(Text::around(&found.before, &name, &found.after))
            });
            words[at].0 = word;
        }
        for (at, (word, line)) in words.iter().enumerate() {
            let names: Vec<_> = word.variables().map(str::to_owned).collect();
            let is_reference = plain[at].is_none();
            if is_reference {
                lines.push((*line, format!("args[{}]", at.saturating_sub(1)), "refers to a variable; arguments are passed as they are, so a shell fills it in"));
            }
            for name in names {
                match env.contains_key(&name) {
                    // References in the server's arguments are replaced by the values of its own environment variables.
                    true if is_reference => {
                        let own = env
                            .get(&name)
                            .is_some_and(|it| it.variables().any(|own| own == name));
                        if !own {
                            self.has_value(&name);
                        }
                    }
                    true => {}
                    false => {
                        env.insert(name.clone(), Text::around("", &name, ""));
                    }
                }
            }
        }
        for (line, key, why) in lines {
            self.note(line, &key, why);
        }
        let needs_shell = words.iter().any(|(word, _)| word.plain().is_none());
        let (command, args) = match needs_shell {
            true => {
                let script = words.iter().filter_map(|(word, _)| word.shell_word());
                let script = format!("exec {}", script.collect::<Vec<_>>().join(" "));
                if matches!(
                    plain.first().and_then(Option::as_deref).map(program),
                    Some("npx" | "uvx" | "bunx" | "pnpx" | "docker")
                ) && !self.keys.contains_key("connect_timeout")
                {
                    // The shell runs a command that first downloads a package, so the start gets more time.
                    self.keys.insert("connect_timeout".into(), "5m".into());
                }
                ("sh".to_owned(), vec!["-c".to_owned(), script])
            }
            false => {
                let mut plain = plain.into_iter().flatten();
                // The command is taken from `words`, since it may have been replaced there by an absolute path.
                let _ = plain.next();
                let command = words.first().and_then(|(word, _)| word.plain());
                (command.unwrap_or_default(), plain.collect())
            }
        };
        let mut keys = Mapping::new();
        keys.insert("command".into(), command.into());
        if !args.is_empty() {
            keys.insert("args".into(), args.into_iter().map(Yaml::from).collect());
        }
        if !env.is_empty() {
            let env = env
                .iter()
                .map(|(name, text)| (Yaml::from(name.as_str()), text.template().into()));
            keys.insert("env".into(), Yaml::Mapping(env.collect()));
        }
        let cwd = cwd.or_else(|| has_relative.then(|| base.to_string_lossy().into_owned()));
        if let Some(cwd) = cwd {
            keys.insert("cwd".into(), cwd.into());
        }
        keys.extend(std::mem::take(&mut self.keys));
        self.keys = keys;
    }

    /// Stores a credential from an argument, under a name that none of the server's other variables has.
    fn keep_beside(&mut self, env: &BTreeMap<String, Text>, wanted: &str, value: &str) -> String {
        let is_free = |name: &str| {
            env.get(name)
                .is_none_or(|it| it.variables().eq([name]) && it.literals().next().is_none())
        };
        match is_free(wanted) {
            true => self.keep(wanted, value),
            false => self.keep(&format!("{wanted}_ARGUMENT"), value),
        }
    }

    /// Imports a server with the command `npx mcp-remote URL` as a remote server with that URL.
    fn as_mcp_remote(
        &mut self,
        words: &[(Text, usize)],
        env: &BTreeMap<String, Text>,
    ) -> Option<Kind> {
        let mut rest = words.iter();
        let command = rest.next()?.0.plain()?;
        let runs_package = matches!(program(&command), "npx" | "bunx" | "pnpx");
        let is_package = |text: &str| text == "mcp-remote" || text.starts_with("mcp-remote@");
        if runs_package {
            let package =
                rest.find(|(word, _)| word.plain().is_none_or(|it| it != "-y" && it != "--yes"))?;
            if !is_package(&package.0.plain()?) {
                return None;
            }
        } else if program(&command) != "mcp-remote" {
            return None;
        }
        let url = rest.next()?.0.plain()?;
        let mut headers = Vec::new();
        while let Some((word, line)) = rest.next() {
            match word.plain()?.as_str() {
                "--header" => {
                    let (header, _) = rest.next()?;
                    let filled = header.filled(|name| env.get(name).cloned());
                    headers.push((filled, *line));
                }
                "--transport" => {
                    if rest.next()?.0.plain()? == "sse-only" {
                        self.keys.insert("transport".into(), "sse".into());
                    }
                }
                "--allow-http" | "--debug" | "--silent" => {}
                port if !port.is_empty() && port.bytes().all(|it| it.is_ascii_digit()) => {}
                _ => return None,
            }
        }
        for name in env.keys() {
            self.has_value_unless_used(name, &headers);
        }
        self.note(self.entry.line, "command", "mcp-remote is not needed: the gateway reaches the URL by itself. If the server asks for a sign-in in a browser, write oauth for it (docs/credentials.md), then run tooldock secrets authorize");
        self.remote_of(&url, headers)
    }

    fn has_value_unless_used(&mut self, name: &str, headers: &[(Text, usize)]) {
        let mut used = headers.iter().flat_map(|(text, _)| text.variables());
        if !used.any(|it| it == name) {
            self.has_value(name);
        }
    }
}

/// The name of a program without its folder and its file extension.
fn program(command: &str) -> &str {
    let name = command.rsplit(['/', '\\']).next().unwrap_or(command);
    name.strip_suffix(".cmd")
        .or_else(|| name.strip_suffix(".exe"))
        .unwrap_or(name)
}

/// Returns true if an argument is a path relative to the working directory.
fn is_relative(argument: &str) -> bool {
    const SCRIPTS: [&str; 9] = ["js", "mjs", "cjs", "ts", "py", "sh", "jar", "rb", "php"];
    let is_dots =
        matches!(argument, "." | "..") || argument.starts_with("./") || argument.starts_with("../");
    let ending = Path::new(argument).extension().and_then(|it| it.to_str());
    let is_script = ending.is_some_and(|it| SCRIPTS.contains(&it));
    is_dots
        || (is_script && !argument.starts_with(['/', '-', '@', '~']) && !argument.contains("://"))
}
