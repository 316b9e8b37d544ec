//! Network of a test: Linux network namespaces that a router connects. Packets between two of them can be dropped.
//!
//! The test runs a second time, as a process in its own namespace, which is the router. It therefore takes no address or name
//! from the machine or from other tests, and the network disappears with that process.

use std::env;
use std::io::{BufRead as _, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::programs::run;

/// Address, at the router, of servers that all members use, such as Redis.
pub const SHARED: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 100);

/// Environment variable that is set in the process that runs the test in its own network.
const INSIDE: &str = "TOOLDOCK_TEST_NETWORK";

/// Script that turns its process into the router, then runs the program in its arguments. The rules that drop packets take
/// precedence over the local addresses, so that they also apply to packets for the router itself. In a container `/proc/sys` may
/// be read-only, so `/proc` is mounted again, for this process alone.
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

/// Script that connects a member to the router. Arguments: the member's number, address and process id.
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

/// Network in which a test runs.
pub enum Place {
    /// The test has run in another process, which had its own network: nothing is left to do.
    Elsewhere,
    /// The test runs in this process, which has its own network.
    Own,
    /// The test runs in the machine's network, since this machine allows no network namespaces.
    Machine,
}

/// Runs a test once more, in a process with its own network if the machine allows that, and waits for its end. `test`: the test's
/// name.
///
/// # Panics
///
/// When the test fails in that process.
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

/// Network of members, each with its own address. The members reach each other and [`SHARED`] through the router.
pub struct Network {
    members: Vec<Member>,
    /// Folder of scripts, each of which runs a program in a member's namespace.
    programs: TempDir,
}

struct Member {
    address: Ipv4Addr,
    /// Process that keeps the namespace. It ends when its standard input is closed.
    holder: Child,
}

impl Network {
    /// Creates a network with `members` members.
    ///
    /// # Panics
    ///
    /// When this process does not run in its own network.
    pub fn of(members: u8) -> Self {
        Self {
            members: (1..=members).map(Member::join).collect(),
            programs: TempDir::new().expect("a temporary directory"),
        }
    }

    /// Returns the address of a member with a port.
    pub fn address(&self, member: usize, port: u16) -> SocketAddr {
        SocketAddr::from((self.members[member].address, port))
    }

    /// Returns the path of a script that runs `program` in the namespace of a member.
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

    /// Drops all packets between a member and the other members if `peers`, and between the member and [`SHARED`] if `shared`.
    pub fn cut(&self, member: usize, peers: bool, shared: bool) {
        self.rules("add", member, peers, shared);
    }

    /// Undoes a [`Network::cut`] with the same arguments.
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
