//! A network of one test: Linux network namespaces, joined by a router, between which packets can be lost.
//!
//! The test runs once more as a process in a namespace of its own, which is the router. So it takes no address or name from the
//! machine and from other tests, and nothing of it is left when the process ends, however it ends.

use std::env;
use std::io::{BufRead as _, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::programs::run;

/// Address of what the members share, at the router.
pub const SHARED: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 100);

/// Set in the process that runs the test in a namespace of its own.
const INSIDE: &str = "TOOLDOCK_TEST_NETWORK";

/// Rules come before the local addresses, so that they count for packets that arrive here, too. A container may have `/proc/sys`
/// read-only; the mount is of this process alone.
const ROUTER: &str = r#"
set -e
test -w /proc/sys/net/ipv4/ip_forward || mount -t proc proc /proc
echo 1 >/proc/sys/net/ipv4/ip_forward
echo 1 >/proc/sys/net/ipv4/conf/all/proxy_arp
ip link set lo up
ip address add 10.0.0.100/32 dev lo
ip rule add pref 10 lookup local
ip rule del pref 0
exec "$@"
"#;

/// Arguments: number, address and process of the member.
const JOINED: &str = r#"
set -e
ip link add "member$1" type veth peer name eth0 netns "$3"
ip link set "member$1" up
ip address add 10.0.0.254/32 dev "member$1"
ip route add "$2" dev "member$1"
nsenter --net="/proc/$3/ns/net" sh -ec '
ip link set lo up
ip address add "$1/32" dev eth0
ip link set eth0 up
ip route add default dev eth0
ip rule add pref 10 lookup local
ip rule del pref 0' sh "$2"
"#;

/// Place where a test has run, or is to run.
pub enum Place {
    /// In another process, which had a network of its own: nothing is left to do.
    Elsewhere,
    /// This process has a network of its own.
    Own,
    /// This machine allows no network namespaces.
    Machine,
}

/// Runs the test of that name once more, in a process with a network of its own, and waits for its end.
///
/// # Panics
///
/// When the test fails there.
pub fn place(test: &str) -> Place {
    if env::var_os(INSIDE).is_some() {
        return Place::Own;
    }
    let allowed = router(Path::new("true")).output();
    if !allowed.is_ok_and(|told| told.status.success()) {
        return Place::Machine;
    }
    let tests = env::current_exe().expect("the path of the tests");
    let status = router(&tests)
        .args(["--exact", test, "--nocapture"])
        .env(INSIDE, "1")
        .status()
        .expect("started");
    assert!(status.success(), "{test} in a network of its own: {status}");
    Place::Elsewhere
}

fn router(program: &Path) -> Command {
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--net", "--mount", "sh", "-c", ROUTER, "sh"]);
    command.arg(program);
    command
}

/// Members with an address each, which reach each other and [`SHARED`] by way of the router.
pub struct Network {
    members: Vec<Member>,
    /// Scripts that run programs in the namespace of a member.
    programs: TempDir,
}

struct Member {
    address: Ipv4Addr,
    /// Keeps the namespace as long as its standard input is open.
    holder: Child,
}

impl Network {
    /// # Panics
    ///
    /// When this process has no network of its own.
    pub fn of(members: u8) -> Self {
        Self {
            members: (1..=members).map(Member::join).collect(),
            programs: TempDir::new().expect("a temporary directory"),
        }
    }

    /// An address of a member. The port is free at all of them.
    pub fn address(&self, member: usize, port: u16) -> SocketAddr {
        SocketAddr::from((self.members[member].address, port))
    }

    /// A program that runs another one as a process of a member.
    pub fn program(&self, member: usize, program: &Path) -> PathBuf {
        let script = self.programs.path().join(member.to_string());
        let text = format!(
            "#!/bin/sh\nexec nsenter --net={} '{}' \"$@\"\n",
            self.members[member].namespace(),
            program.display()
        );
        std::fs::write(&script, text).expect("written");
        let executable = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&script, executable).expect("executable");
        script
    }

    /// Loses each packet between a member and the members in `peers`, and [`SHARED`] if it is `shared`.
    pub fn cut(&self, member: usize, peers: bool, shared: bool) {
        self.rules("add", member, peers, shared);
    }

    /// Takes back a [`Network::cut`] of the same arguments.
    pub fn mend(&self, member: usize, peers: bool, shared: bool) {
        self.rules("del", member, peers, shared);
    }

    fn rules(&self, what: &str, member: usize, peers: bool, shared: bool) {
        let cut = &self.members[member];
        let others = self.members.iter().map(|other| other.address);
        let others = others.filter(|other| peers && *other != cut.address);
        for other in others.chain(shared.then_some(SHARED)) {
            let rule = |more: &[String]| {
                let mut command = Command::new("ip");
                command.args(["rule", what, "pref", "1", "blackhole"]);
                command.args(more);
                command
            };
            let (here, there) = (cut.address.to_string(), other.to_string());
            run(&mut rule(&[
                "from".into(),
                here,
                "to".into(),
                there.clone(),
            ]));
            let back = rule(&["from".into(), there]);
            let mut entered = Command::new("nsenter");
            entered.arg(format!("--net={}", cut.namespace()));
            run(entered.arg(back.get_program()).args(back.get_args()));
        }
    }
}

impl Member {
    fn join(number: u8) -> Self {
        let mut holder = Command::new("unshare")
            .args(["--net", "sh", "-c", "echo; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let said = holder.stdout.as_mut().expect("a pipe");
        let said = BufReader::new(said).read_line(&mut String::new());
        assert_eq!(said.expect("a line"), 1, "the namespace is there");
        let member = Self {
            address: Ipv4Addr::new(10, 0, 0, number),
            holder,
        };
        let (number, address) = (number.to_string(), member.address.to_string());
        let pid = member.holder.id().to_string();
        run(Command::new("sh").args(["-c", JOINED, "sh", &number, &address, &pid]));
        member
    }

    fn namespace(&self) -> String {
        format!("/proc/{}/ns/net", self.holder.id())
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}
