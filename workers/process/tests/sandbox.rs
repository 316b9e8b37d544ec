//! The parts of a sandbox one by one, as machines have them whose kernels lack the others.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tempfile::TempDir;
use tokio::io::AsyncReadExt as _;
use tooldock_base::config::{Sandbox, SandboxMode};
use tooldock_base::secret::Secret;
use tooldock_process::child::confine::{KeptPath, KernelSupport, MountNamespace};
use tooldock_process::child::{Child, Priority, ProcessSpec, Stdin, kernel_support};
use tooldock_process::metrics::WorkerMetrics;
use tooldock_process::sandbox::{HostFacts, ProcessFacts, SandboxHost};

fn guard() -> PathBuf {
    env!("CARGO_BIN_EXE_tooldock-test-guard").into()
}

/// A data directory with a folder of its own and one of another namespace, and a folder of the user.
struct House {
    data: TempDir,
    users: TempDir,
}

impl House {
    fn new() -> Self {
        let (data, users) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        let house = Self { data, users };
        for name in ["tools/own", "tools/other", "runtime", "venvs", "../bin"] {
            fs::create_dir_all(house.path(name)).unwrap();
        }
        fs::write(house.path("tools/own/text"), "own").unwrap();
        fs::write(house.path("tools/other/text"), "other").unwrap();
        fs::write(house.path("keys.json"), "keys").unwrap();
        fs::write(house.program(), "program").unwrap();
        fs::write(house.users.path().join("text"), "user").unwrap();
        house
    }

    /// A path in the data directory, which is in a folder of the user's.
    fn path(&self, name: &str) -> PathBuf {
        self.data.path().join("above/data").join(name)
    }

    /// A program of the gateway, beside the data directory.
    fn program(&self) -> PathBuf {
        self.data.path().join("above/bin/program")
    }

    /// Output of a shell command in the sandbox.
    async fn says(&self, support: KernelSupport, mode: SandboxMode, script: &str) -> String {
        let host = SandboxHost::new(HostFacts {
            support,
            data: Some(self.path("")),
            programs: vec![self.program()],
            ..HostFacts::default()
        });
        let cwd = self.path("tools/own");
        let args: Vec<OsString> = vec!["-c".into(), script.into()];
        let facts = ProcessFacts {
            namespace: &"own".parse().unwrap(),
            program: Path::new("/bin/sh"),
            args: &args,
            env: &[],
            cwd: &cwd,
            own: &[KeptPath::writable(&cwd)],
        };
        let confined = host.confine(&Sandbox::of(mode), &facts).unwrap();
        let spec = ProcessSpec {
            program: "/bin/sh".into(),
            args,
            env: vec![("PATH".into(), Secret::new("/usr/bin:/bin"))],
            cwd: cwd.clone(),
            stdin: Stdin::Null,
            priority: Priority::Normal,
            sandbox: confined.map(|it| Arc::clone(&it.confinement)),
        };
        let metrics = WorkerMetrics::new(&prometheus::Registry::new()).unwrap();
        let mut child = Child::spawn(&spec, &guard(), metrics.processes())
            .await
            .unwrap();
        let mut text = String::new();
        let mut stdout = child.take_stdout().unwrap();
        stdout.read_to_string(&mut text).await.unwrap();
        child.wait().await;
        text
    }
}

#[tokio::test]
async fn mounts_alone_and_landlock_alone_keep_the_same_files_away() {
    let machine = kernel_support(&guard());
    let mounts = KernelSupport {
        mounts: machine.mounts,
        ..KernelSupport::default()
    };
    let landlock = KernelSupport {
        landlock: machine.landlock,
        ..KernelSupport::default()
    };
    for support in [mounts, landlock, machine] {
        let house = House::new();
        let script = format!(
            "cat text; cat ../other/text; cat {} {}; cat {}; echo new > made && cat made; ls {}",
            house.path("keys.json").display(),
            house.path("tools/other/text").display(),
            house.users.path().join("text").display(),
            house.users.path().display(),
        );
        let text = house.says(support, SandboxMode::Basic, &script).await;
        let open = match support.keeps_files() {
            true => "ownusernew\ntext\n",
            false => "ownotherkeysotherusernew\ntext\n",
        };
        assert_eq!(text, open, "{support:?}");
        assert_eq!(
            fs::read_to_string(house.path("tools/own/made")).unwrap(),
            "new\n"
        );
    }
}

#[tokio::test]
async fn a_folder_that_appears_later_is_closed_and_what_the_user_makes_stays_reachable() {
    let machine = kernel_support(&guard());
    if machine.mounts == MountNamespace::None {
        return;
    }
    let house = House::new();
    let (later, users) = (house.path("tools/later"), house.users.path().join("later"));
    // The shell waits for the file of the user, which is made last.
    let script = format!(
        "until test -e {0}/text; do :; done; cat {0}/text; cat {1}/text",
        users.display(),
        later.display(),
    );
    let making = async {
        fs::create_dir(&later).unwrap();
        fs::write(later.join("text"), "secret").unwrap();
        fs::create_dir(&users).unwrap();
        fs::write(users.join(".text"), "user").unwrap();
        fs::rename(users.join(".text"), users.join("text")).unwrap();
    };
    let (text, ()) = tokio::join!(house.says(machine, SandboxMode::Basic, &script), making);
    assert_eq!(text, "user");
}

#[tokio::test]
async fn the_folders_above_the_data_directory_and_the_gateways_programs_cannot_be_replaced() {
    let machine = kernel_support(&guard());
    if machine.mounts == MountNamespace::None {
        return;
    }
    let house = House::new();
    let (above, program) = (house.data.path().join("above"), house.program());
    let script = format!(
        "try() {{ \"$@\" 2>/dev/null && echo \"$*\"; }}; try mv {above} {above}-moved; try mv {bin} {bin}-moved; try rm -r {bin}; \
         try mv {program} {program}-moved; try rm -f {program}; try cp /bin/sh {program}; cat {program}; \
         touch {above}/new && mv {above}/new {bin}/new && echo works",
        above = above.display(),
        bin = above.join("bin").display(),
        program = program.display(),
    );
    for mode in [SandboxMode::Basic, SandboxMode::Off] {
        let text = house.says(machine, mode, &script).await;
        match mode {
            SandboxMode::Off => assert!(text.starts_with("mv "), "{text}"),
            _ => assert_eq!(text, "programworks\n"),
        }
    }
}

#[tokio::test]
async fn strict_reads_the_system_and_its_own_folder_alone() {
    let machine = kernel_support(&guard());
    if machine.landlock == 0 {
        return;
    }
    let without_mounts = KernelSupport {
        mounts: MountNamespace::None,
        ..machine
    };
    for support in [machine, without_mounts] {
        let house = House::new();
        let script = format!(
            "cat text; cat ../other/text; cat {}; echo new > made; test -e made || echo closed",
            house.users.path().join("text").display(),
        );
        let text = house.says(support, SandboxMode::Strict, &script).await;
        assert!(text.starts_with("ownclosed\n"), "{support:?}: {text}");
    }
}
