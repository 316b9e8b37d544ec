//! The Landlock domain of a sandboxed command. It restricts files, TCP connections, signals and abstract sockets.
//!
//! Landlock rules can only allow paths, not forbid them. In mode `basic` with mounts, mounts already hide the files, so the
//! domain only forbids creating device nodes. In mode `basic` without mounts, all paths except the hidden ones are allowed: for
//! each folder on the path from the root to a hidden path, there are rules for its other entries. In such a folder, entries that
//! are created later are not allowed, and commands can neither list it nor create entries. In mode `strict`, the listed paths are
//! allowed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, NetPort, PathBeneath,
    PathFd, Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, Scope,
};
use tooldock_base::config::SandboxMode;

use super::kernel::MountNamespace;
use super::{Confinement, NetworkRule};

/// Devices that programs commonly use, besides terminals. They are allowed in mode `strict`.
const DEVICES: [&str; 10] = [
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/tty",
    "/dev/ptmx",
    "/dev/pts",
    "/dev/shm",
    "/dev/fd",
];

/// Restricts this process and its descendants by a Landlock domain.
pub(super) fn restrict(own: &Confinement) -> io::Result<()> {
    let abi = match own.support.landlock {
        0 => return Ok(()),
        1 => ABI::V1,
        2 => ABI::V2,
        3 => ABI::V3,
        4 => ABI::V4,
        5 => ABI::V5,
        _ => ABI::V6,
    };
    let by_mounts = own.support.mounts != MountNamespace::None;
    let forbids_devices = AccessFs::MakeBlock | AccessFs::MakeChar;
    let handled = match own.mode {
        SandboxMode::Basic if by_mounts && abi < ABI::V2 => {
            // No rules for files: in Landlock's first version, any such rule also forbids renames between folders.
            BitFlags::empty()
        }
        SandboxMode::Basic if by_mounts => forbids_devices | AccessFs::Refer,
        SandboxMode::Off | SandboxMode::Basic | SandboxMode::Strict => AccessFs::from_all(abi),
    };
    let mut ruleset = Ruleset::default().set_compatibility(CompatLevel::BestEffort);
    if !handled.is_empty() {
        ruleset = ruleset.handle_access(handled).map_err(failed)?;
    }
    let ports = allowed_ports(own);
    let no_network = own.network == NetworkRule::None;
    if abi >= ABI::V4 && (own.supervises_connections() || no_network || ports.is_some()) {
        ruleset = ruleset
            .handle_access(AccessNet::ConnectTcp)
            .map_err(failed)?;
    }
    if abi >= ABI::V6 {
        ruleset = ruleset.scope(Scope::from_all(abi)).map_err(failed)?;
    }
    if handled.is_empty() && abi < ABI::V4 {
        return Ok(());
    }
    let mut rules = LandlockRules {
        ruleset: ruleset.create().map_err(failed)?,
        abi,
    };
    if !own.supervises_connections() {
        for port in ports.into_iter().flatten() {
            rules.ruleset = rules
                .ruleset
                .add_rule(NetPort::new(port, AccessNet::ConnectTcp))
                .map_err(failed)?;
        }
    }
    match own.mode {
        SandboxMode::Basic if handled.is_empty() => {}
        SandboxMode::Basic if by_mounts => {
            rules.allow(Path::new("/"), AccessFs::Refer.into())?;
        }
        SandboxMode::Off | SandboxMode::Basic => {
            rules.beside(Path::new("/"), &kept_away(own), AccessFs::from_all(abi), 0)?;
            for kept in &own.kept {
                let access = access(kept.writable, abi);
                rules.allow(&kept.path, access)?;
            }
        }
        SandboxMode::Strict => {
            let away = kept_away(own);
            for (paths, writable) in [(&own.read, false), (&own.write, true)] {
                for path in paths {
                    let path = fs::canonicalize(path).unwrap_or_else(|_| path.clone());
                    rules.beside(&path, &away, access(writable, abi), 0)?;
                }
            }
            for device in DEVICES {
                rules.allow(Path::new(device), access(true, abi))?;
            }
            for kept in &own.kept {
                rules.allow(&kept.path, access(kept.writable, abi))?;
            }
        }
    }
    rules.ruleset.restrict_self().map_err(failed)?;
    Ok(())
}

/// The ports to which TCP connections are allowed; `None` if the guard decides about connections, or the network rule lists no
/// destinations.
fn allowed_ports(own: &Confinement) -> Option<Vec<u16>> {
    if own.support.connections {
        return None;
    }
    match &own.network {
        NetworkRule::Open | NetworkRule::Public | NetworkRule::None => None,
        NetworkRule::Only(addresses) => {
            let port = |it: &String| it.rsplit_once(':')?.1.parse().ok();
            addresses.iter().map(port).collect()
        }
    }
}

/// The hidden paths, with symbolic links resolved; empty if mounts hide them.
fn kept_away(own: &Confinement) -> Vec<PathBuf> {
    if own.support.mounts != MountNamespace::None {
        return Vec::new();
    }
    let all = own.covered.iter().chain(&own.hidden);
    all.map(|it| fs::canonicalize(it).unwrap_or_else(|_| it.clone()))
        .collect()
}

fn access(writable: bool, abi: ABI) -> BitFlags<AccessFs> {
    match writable {
        true => AccessFs::from_all(abi),
        false => AccessFs::from_read(abi),
    }
}

/// Maximum depth of the folders on the path to a hidden path for whose entries rules are created. Deeper entries are not allowed.
const DEPTH_MAX: usize = 64;

struct LandlockRules {
    ruleset: RulesetCreated,
    abi: ABI,
}

impl LandlockRules {
    /// Adds a rule that allows a path with everything below it. A path that does not exist needs no rule.
    fn allow(&mut self, path: &Path, access: BitFlags<AccessFs>) -> io::Result<()> {
        let Ok(opened) = PathFd::new(path) else {
            return Ok(());
        };
        let access = match path.is_dir() {
            true => access,
            false => access & AccessFs::from_file(self.abi),
        };
        if access.is_empty() {
            return Ok(());
        }
        (&mut self.ruleset)
            .add_rule(PathBeneath::new(opened, access))
            .map_err(failed)?;
        Ok(())
    }

    /// Adds rules that allow a path with everything below it, except the paths in `away`.
    fn beside(
        &mut self,
        path: &Path,
        away: &[PathBuf],
        access: BitFlags<AccessFs>,
        depth: usize,
    ) -> io::Result<()> {
        if away.iter().any(|it| path.starts_with(it)) || depth > DEPTH_MAX {
            return Ok(());
        }
        if !away.iter().any(|it| it.starts_with(path)) {
            return self.allow(path, access);
        }
        for entry in fs::read_dir(path).into_iter().flatten().flatten() {
            // Symbolic links need no rule: access is decided by the rule for their target.
            if !entry.file_type().is_ok_and(|it| it.is_symlink()) {
                self.beside(&entry.path(), away, access, depth + 1)?;
            }
        }
        Ok(())
    }
}

fn failed(error: impl std::fmt::Display) -> io::Error {
    io::Error::other(error.to_string())
}
