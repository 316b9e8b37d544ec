//! Clones of repositories that real git made, including hostile ones.

use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use bytesize::ByteSize;
use tooldock_process::repositories::{
    Analysis, BuilderErrorCode, BuilderLine, BuilderRequest, Task,
};

use super::*;
use crate::job::run;

/// A repository, and the folder of its clones.
struct Sample {
    temp: tempfile::TempDir,
    config: BuilderConfig,
}

impl Sample {
    fn new() -> Self {
        let sample = Self {
            temp: tempfile::tempdir().unwrap(),
            config: BuilderConfig {
                git_schemes: vec![GitScheme::Https, GitScheme::File],
                ..BuilderConfig::default()
            },
        };
        std::fs::create_dir(sample.path()).unwrap();
        sample.git(&["init", "--quiet", "--initial-branch=main"]);
        sample
    }

    fn path(&self) -> PathBuf {
        self.temp.path().join("origin")
    }

    fn git(&self, arguments: &[&str]) {
        let status = git_in(&self.path()).args(arguments).status().unwrap();
        assert!(status.success(), "{arguments:?}");
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn commit(&self) {
        self.git(&["add", "--all"]);
        self.git(&["commit", "--quiet", "--message=x"]);
    }

    /// Commits a stream with `git fast-import`.
    fn import(&self, stream: &[u8]) {
        let mut command = git_in(&self.path());
        let command = command
            .args(["fast-import", "--quiet", "--force"])
            .stdin(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(stream).unwrap();
        assert!(child.wait().unwrap().success());
    }

    fn repos(&self) -> PathBuf {
        self.temp.path().join("repos")
    }

    fn request(&self, task: Task) -> BuilderRequest {
        BuilderRequest {
            task,
            repos: self.repos(),
            config: self.config.clone(),
        }
    }

    fn analysed(&self) -> Result<Analysis, BuilderError> {
        self.analysed_at(&format!("file://{}", self.path().display()))
    }

    fn analysed_at(&self, url: &str) -> Result<Analysis, BuilderError> {
        match run(&self.request(Task::AnalyzeRepo(url.to_owned())), &|_| {}) {
            BuilderLine::Analysis(analysis) => Ok(analysis),
            BuilderLine::Error(error) => Err(error),
            other => panic!("{other:?}"),
        }
    }

    /// The files of the only tree that is kept.
    fn kept(&self) -> PathBuf {
        let trees = std::fs::read_dir(self.repos())
            .unwrap()
            .map(|it| it.unwrap().path());
        let mut trees: Vec<_> = trees.filter(|it| it.is_dir()).collect();
        assert_eq!(trees.len(), 1, "{trees:?}");
        trees.remove(0).join("files")
    }
}

fn git_in(directory: &Path) -> Command {
    let mut command = Command::new("git");
    command
        .args([
            "-c",
            "user.name=T",
            "-c",
            "user.email=t@h",
            "-c",
            "protocol.file.allow=always",
        ])
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .current_dir(directory);
    command
}

#[test]
fn the_newest_commit_is_cloned_and_analysed() {
    let sample = Sample::new();
    sample.write("old.py", "x = 1\n");
    sample.commit();
    sample.git(&["rm", "--quiet", "old.py"]);
    sample.write(
        "src/server.py",
        "from mcp.server.fastmcp import FastMCP\n@mcp.tool()\ndef add(a: int): ...\n",
    );
    sample.write("logo.bin", "\0");
    sample.commit();
    let steps = std::cell::RefCell::new(Vec::new());
    let url = format!("file://{}", sample.path().display());
    let answer = run(&sample.request(Task::AnalyzeRepo(url.clone())), &|it| {
        steps.borrow_mut().push(it.message)
    });
    let BuilderLine::Analysis(analysis) = answer else {
        panic!("{answer:?}");
    };
    assert_eq!(analysis.repo_url, url);
    assert_eq!(analysis.files, ["logo.bin", "src/server.py"]);
    assert_eq!(analysis.language, "python");
    assert_eq!(analysis.tools_found[0].name, "add");
    let steps = steps.into_inner();
    assert!(
        steps.contains(&"cloning".to_owned()) && steps.contains(&"reading 2 files".to_owned()),
        "{steps:?}"
    );
    // No file of git is kept, and a second run replaces the first.
    sample.write("src/new.py", "");
    sample.commit();
    assert_eq!(sample.analysed().unwrap().files.len(), 3);
    let tree = sample.kept();
    let beside: Vec<_> = std::fs::read_dir(tree.parent().unwrap())
        .unwrap()
        .map(|it| it.unwrap().file_name().into_string().unwrap())
        .filter(|it| !["source.json", "files"].contains(&it.as_str()))
        .collect();
    assert!(beside.is_empty(), "{beside:?}");
}

#[test]
fn links_submodules_hooks_and_filters_do_nothing() {
    let sample = Sample::new();
    let ran = sample.temp.path().join("ran");
    let touch = format!("touch {}", ran.display());
    sample.write("a.txt", "as it is\n");
    sample.write(".gitattributes", "*.txt filter=evil ident\n");
    sample.write(
        ".gitmodules",
        "[submodule \"m\"]\n\tpath = m\n\turl = ext::sh -c 'touch ran'\n",
    );
    sample.write("dir/inside.txt", "x");
    symlink("/etc/passwd", sample.path().join("passwd")).unwrap();
    symlink("../..", sample.path().join("dir/up")).unwrap();
    sample.git(&["add", "--all"]);
    sample.git(&[
        "update-index",
        "--add",
        "--cacheinfo",
        "160000,0123456789012345678901234567890123456789,m",
    ]);
    sample.git(&["commit", "--quiet", "--message=x"]);
    // The origin's own configuration applies to no other repository.
    sample.git(&["config", "filter.evil.smudge", &touch]);
    sample.git(&["config", "core.fsmonitor", &touch]);
    for hook in ["post-checkout", "pre-upload", "post-upload"] {
        let path = sample.path().join(".git/hooks").join(hook);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, format!("#!/bin/sh\n{touch}\n")).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&path, mode).unwrap();
    }
    let analysis = sample.analysed().unwrap();
    assert!(!ran.exists());
    assert_eq!(
        analysis.files,
        [".gitattributes", ".gitmodules", "a.txt", "dir/inside.txt"]
    );
    let tree = sample.kept();
    assert_eq!(
        std::fs::read_to_string(tree.join("a.txt")).unwrap(),
        "as it is\n"
    );
    assert!(!tree.join("passwd").exists() && !tree.join("m").exists());
    assert!(
        analysis.notes[0]
            .starts_with("3 files cannot be read, the first: dir/up is a symbolic link"),
        "{:?}",
        analysis.notes
    );
}

#[test]
fn large_files_are_left_out_and_large_repositories_refused() {
    let mut sample = Sample::new();
    sample.write("a.py", "x = 1\n");
    let sparse = std::fs::File::create(sample.path().join("sparse")).unwrap();
    sparse.set_len(16 * 1024 * 1024).unwrap();
    sample.commit();
    let analysis = sample.analysed().unwrap();
    assert_eq!(analysis.files, ["a.py"]);
    assert!(
        analysis.notes[0].contains("sparse has 16 MiB"),
        "{:?}",
        analysis.notes
    );

    // Random, so that git cannot compress it.
    let noise: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..))
        .take(600 * 1024)
        .collect();
    for name in ["one", "two"] {
        std::fs::write(sample.path().join(name), [name.as_bytes(), &noise].concat()).unwrap();
    }
    sample.commit();
    sample.config.max_size = ByteSize::mib(1);
    let error = sample.analysed().unwrap_err();
    assert_eq!(error.code, BuilderErrorCode::TooLarge, "{error}");
    assert!(
        error.message.contains("1 MiB") && error.message.contains("builder.max_size"),
        "{error}"
    );
}

#[test]
fn many_files_and_deep_folders_are_refused_or_left_out() {
    let sample = Sample::new();
    let mut stream =
        b"blob\nmark :1\ndata 1\nx\ncommit refs/heads/main\ncommitter T <t@h> 1 +0000\ndata 1\nx\n"
            .to_vec();
    for index in 0..60_000 {
        writeln!(stream, "M 100644 :1 d{}/f{index}", index / 1000).unwrap();
    }
    sample.import(&stream);
    let error = sample.analysed().unwrap_err();
    assert_eq!(error.code, BuilderErrorCode::TooLarge, "{error}");
    assert!(error.message.contains("more than 50000 files"), "{error}");
    assert_eq!(
        std::fs::read_dir(sample.repos()).unwrap().count(),
        1,
        "the lock file"
    );

    let sample = Sample::new();
    let mut stream =
        b"blob\nmark :1\ndata 1\nx\ncommit refs/heads/main\ncommitter T <t@h> 1 +0000\ndata 1\nx\n"
            .to_vec();
    writeln!(stream, "M 100644 :1 {}f", "d/".repeat(500)).unwrap();
    writeln!(
        stream,
        "M 100644 :1 a/f\nM 100644 :1 \"new\\nline\"\nM 100644 :1 \"\\377\""
    )
    .unwrap();
    sample.import(&stream);
    let analysis = sample.analysed().unwrap();
    assert_eq!(analysis.files, ["a/f"]);
    assert!(
        analysis.notes[0].starts_with("3 files cannot be read"),
        "{:?}",
        analysis.notes
    );
}

#[test]
fn what_must_not_be_reached_is_refused_before_git_starts() {
    let mut sample = Sample::new();
    sample.commit_nothing();
    sample.config.git_schemes = vec![GitScheme::Https];
    let file = sample.analysed().unwrap_err();
    assert_eq!(file.code, BuilderErrorCode::Refused, "{file}");
    assert!(file.message.contains("GIT_ALLOWED_SCHEMES"), "{file}");
    sample.config.git_schemes = vec![GitScheme::Https, GitScheme::Http];
    for url in [
        "http://169.254.169.254/latest/meta-data",
        "http://127.0.0.1:1/x",
        "https://[::1]/x",
        "http://2130706433/x",
        "http://0x7f.1/x",
        "https://localhost/x",
        "https://[::ffff:10.0.0.1]/x",
    ] {
        let error = sample.analysed_at(url).unwrap_err();
        assert_eq!(error.code, BuilderErrorCode::Refused, "{url}: {error}");
        assert!(
            error.message.contains("GIT_PRIVATE_HOSTS"),
            "{url}: {error}"
        );
    }
    assert!(!sample.repos().exists());
    // Allowed by name: git connects, and no process listens.
    sample.config.private_hosts = vec!["127.0.0.1".into()];
    let error = sample.analysed_at("http://127.0.0.1:1/x").unwrap_err();
    assert_eq!(error.code, BuilderErrorCode::Unavailable, "{error}");
}

#[test]
fn empty_and_missing_repositories_are_told_apart() {
    let sample = Sample::new();
    let empty = sample.analysed().unwrap_err();
    assert_eq!(empty.code, BuilderErrorCode::NotFound, "{empty}");
    assert!(empty.message.contains("empty"), "{empty}");
    let missing = sample.analysed_at("file:///nonexistent/repo").unwrap_err();
    assert_eq!(missing.code, BuilderErrorCode::NotFound, "{missing}");
    assert!(missing.message.contains("no repository"), "{missing}");
}

impl Sample {
    fn commit_nothing(&self) {
        self.git(&["commit", "--quiet", "--allow-empty", "--message=x"]);
    }
}

#[test]
fn git_that_ends_at_the_limit_of_a_file_without_a_word_is_told_apart_from_other_failures() {
    let failed = ExitStatus::from_raw(128 << 8);
    for (said, by_size) in [
        (
            "Receiving objects:  66% (2/3)\rfatal: fetch-pack: invalid index-pack output\n",
            true,
        ),
        ("fatal: write error: File too large\n", true),
        ("error: index-pack died of signal 25\n", true),
        (
            "fatal: pack is corrupted (SHA1 mismatch)\nfatal: fetch-pack: invalid index-pack output\n",
            false,
        ),
        (
            "error: RPC failed\nfatal: fetch-pack: invalid index-pack output\n",
            false,
        ),
        ("fatal: early EOF\n", false),
    ] {
        assert_eq!(ended_by_size(failed, said), by_size, "{said}");
    }
}
