//! The tutorial as a reader follows it: its commands run in order in an empty home, and each prints the lines below it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::Mutex;

use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;

use crate::support::gateway::shared_base_env;
use crate::support::ports::free_address;
use crate::support::programs::root;
use crate::support::{Gateway, READY_DEADLINE, eventually_within, pages};

/// Ports on the page. The first four are the defaults of the variables in [`VARIABLES`].
const PORTS: [&str; 8] = [
    "8000", "8001", "18080", "9090", "7000", "7001", "7002", "7003",
];

const VARIABLES: [&str; 4] = [
    "TOOLDOCK_CORE_PORT",
    "TOOLDOCK_MANAGER_PORT",
    "TOOLDOCK_WEB_PORT",
    "TOOLDOCK_METRICS_PORT",
];

/// Folders below the reader's home in which a gateway starts.
const GATEWAYS: [&str; 2] = ["first-gateway", "warehouse"];

/// Start of a block whose command goes on running. The terminal's number follows.
const TERMINAL: &str = "# terminal ";

/// Line behind the output of a block.
const END: &str = "<<end of the block>>";

/// Seconds for all blocks of the second terminal together. Loops that wait on the page have no end of their own.
const SHELL_SECONDS: &str = "240";

/// Kills a process group whose leader still runs.
fn end_group(leader: &mut Child) {
    if matches!(leader.try_wait(), Ok(None)) {
        if let Some(group) = Pid::from_raw(leader.id() as i32) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = leader.wait();
    }
}

/// Home of the reader, with the program on `PATH`.
struct Reader {
    home: TempDir,
    /// Replacements of [`PORTS`].
    ports: Vec<String>,
}

impl Reader {
    fn new() -> Self {
        let home = TempDir::new().unwrap();
        let programs = home.path().join("bin");
        fs::create_dir(&programs).unwrap();
        let program = env!("CARGO_BIN_EXE_tooldock");
        symlink(program, programs.join("tooldock")).unwrap();
        // The base environment of all tests in place of a new one, which needs a package index. The gateway wants a folder
        // there, not a link.
        let shared = fs::canonicalize(shared_base_env()).unwrap();
        for gateway in GATEWAYS {
            let base = home.path().join(gateway).join("tooldock_data/venvs/.base");
            fs::create_dir_all(&base).unwrap();
            for entry in fs::read_dir(&shared).unwrap() {
                let entry = entry.unwrap();
                symlink(entry.path(), base.join(entry.file_name())).unwrap();
            }
        }
        let ports = PORTS.map(|_| free_address().port().to_string());
        Self {
            home,
            ports: ports.into(),
        }
    }

    /// A text of the page with the ports of this test.
    fn with_ports(&self, text: &str) -> String {
        // In two steps, since a new port may hold the digits of an old one.
        let mut text = text.to_owned();
        for (index, port) in PORTS.iter().enumerate() {
            text = text.replace(port, &format!("<port {index}>"));
        }
        for (index, port) in self.ports.iter().enumerate() {
            text = text.replace(&format!("<port {index}>"), port);
        }
        text
    }

    /// A command in the reader's home, in a process group of its own.
    fn command(&self, program: &str) -> Command {
        let mut path = OsString::from(self.home.path().join("bin"));
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        let mut command = Command::new(program);
        command
            .current_dir(self.home.path())
            .env_clear()
            .env("PATH", path)
            .env("HOME", self.home.path())
            .envs(VARIABLES.iter().zip(&self.ports))
            .process_group(0);
        command
    }
}

/// A terminal in which a block's last command goes on running. Dropping it ends the command.
struct Terminal {
    process: Mutex<Child>,
    output: PathBuf,
}

impl Terminal {
    fn start(reader: &Reader, commands: &str, output: &Path) -> Self {
        let file = File::create(output).unwrap();
        let process = reader
            .command("bash")
            .arg("-c")
            .arg(commands)
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap();
        Self {
            process: Mutex::new(process),
            output: output.to_owned(),
        }
    }

    fn output(&self) -> String {
        fs::read_to_string(&self.output).unwrap_or_default()
    }

    /// The exit status, if the command has ended.
    fn exited(&self) -> Option<ExitStatus> {
        self.process.lock().unwrap().try_wait().unwrap()
    }

    /// Presses Ctrl-C and waits for the end of the command.
    fn interrupt(mut self) {
        let process = self.process.get_mut().unwrap();
        assert!(process.try_wait().unwrap().is_none(), "it runs");
        let group = Pid::from_raw(process.id() as i32).unwrap();
        kill_process_group(group, Signal::INT).unwrap();
        process.wait().unwrap();
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        match self.process.get_mut() {
            Ok(process) => end_group(process),
            Err(poisoned) => end_group(poisoned.into_inner()),
        }
        if std::thread::panicking() {
            eprintln!("--- {}\n{}", self.output.display(), self.output());
        }
    }
}

/// The second terminal: one bash for all its blocks, so that variables and the folder last.
struct Shell {
    process: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Shell {
    fn start(reader: &Reader) -> Self {
        let mut process = reader
            .command("timeout")
            .args([SHELL_SECONDS, "bash"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = process.stdin.take().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap()).lines();
        input.write_all(b"exec 2>&1\n").unwrap();
        Self {
            process,
            input,
            output,
        }
    }

    /// Runs a block and returns its output.
    fn run(&mut self, commands: &str) -> String {
        // Commands of the block do not read the blocks behind it: bash reads these from its own standard input.
        let block = format!("{{\n{commands}\n}} </dev/null\nprintf '\\n{END}\\n'\n");
        self.input.write_all(block.as_bytes()).unwrap();
        let mut output = String::new();
        for line in self.output.by_ref() {
            let line = line.unwrap();
            if line == END {
                return output;
            }
            output.push_str(&line);
            output.push('\n');
        }
        panic!("bash ended in this block:\n{commands}\nOutput:\n{output}");
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        end_group(&mut self.process);
    }
}

/// A line with single blanks: widths of columns differ from run to run.
fn words(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Compares a line of output with one of the page, where `…` stands for any text.
fn fits(pattern: &str, line: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('…') else {
        return pattern == line;
    };
    let Some(mut line) = line.strip_prefix(start) else {
        return false;
    };
    let mut parts: Vec<&str> = rest.split('…').collect();
    let end = parts.pop().unwrap_or_default();
    for part in parts {
        let Some((_, behind)) = line.split_once(part) else {
            return false;
        };
        line = behind;
    }
    line.ends_with(end)
}

/// The first line of `expected` that `output` lacks. The lines appear in this order; `…` alone stands for any lines.
fn missing(expected: &str, output: &str) -> Option<String> {
    let mut lines = output.lines().map(words);
    let mut patterns = expected.lines().map(words);
    patterns.find(|pattern| {
        let counts = !pattern.is_empty() && pattern != "…";
        counts && !lines.any(|line| fits(pattern, &line))
    })
}

#[test]
fn a_line_of_the_page_fits_lines_that_differ_where_it_has_dots() {
    let output = "ID     STATE\nk1     active  2026\nbye\n";
    assert_eq!(missing("ID STATE\n…  active  …\nbye\n", output), None);
    assert_eq!(missing("…\nby…\n", output), None);
    let lacks = |expected: &str| missing(expected, output).unwrap();
    assert_eq!(lacks("ID\n"), "ID", "a part of a line");
    assert_eq!(lacks("… active\n"), "… active", "the end differs");
    assert_eq!(lacks("bye\nID STATE\n"), "ID STATE", "another order");
    assert_eq!(lacks("k2…2026\n"), "k2…2026", "the beginning differs");
}

#[tokio::test]
async fn a_reader_who_pastes_the_tutorial_sees_what_it_shows() {
    // Makes the shared base environment where it is missing.
    drop(Gateway::empty().start().await);
    let page = fs::read_to_string(root().join("docs/tutorial.md")).unwrap();
    let reader = Reader::new();
    let blocks = pages::blocks(&reader.with_ports(&page));
    let mut shell = Shell::start(&reader);
    let mut terminals: BTreeMap<String, Terminal> = BTreeMap::new();
    let (mut run, mut compared) = (0, 0);
    for (index, block) in blocks.iter().enumerate() {
        if block.language != "bash" {
            continue;
        }
        run += 1;
        let shown = blocks
            .get(index + 1)
            .filter(|next| ["text", "json"].contains(&next.language.as_str()));
        let expected = shown.map_or("", |next| next.text.as_str());
        compared += usize::from(shown.is_some());
        let Some(terminal) = block.text.strip_prefix(TERMINAL) else {
            let output = shell.run(&block.text);
            let lacks = missing(expected, &output);
            assert_eq!(
                lacks, None,
                "{}\n{}\nOutput:\n{output}",
                block.heading, block.text
            );
            continue;
        };
        let number = terminal.lines().next().unwrap().to_owned();
        // The page says to press Ctrl-C before the next block of a terminal.
        if let Some(previous) = terminals.remove(&number) {
            previous.interrupt();
        }
        let file = reader.home.path().join(format!("terminal-{number}.log"));
        let started = Terminal::start(&reader, &block.text, &file);
        eventually_within(READY_DEADLINE, &block.heading, || async {
            let output = started.output();
            let Some(lacks) = missing(expected, &output) else {
                return Some(());
            };
            if let Some(status) = started.exited() {
                panic!("{status}, without the line {lacks}:\n{output}");
            }
            None
        })
        .await;
        terminals.insert(number, started);
    }
    assert!(
        run >= 20 && compared >= 20,
        "{run} blocks, {compared} with output"
    );
    for terminal in terminals.into_values() {
        terminal.interrupt();
    }
}
