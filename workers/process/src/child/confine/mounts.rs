//! Hides files by mounts. In a separate mount namespace, an empty folder is mounted over each covered folder, and paths in it
//! that stay accessible are bind-mounted into the empty folder.
//!
//! Paths that are created later in a covered folder are invisible to the command; paths created elsewhere are visible. A hidden
//! file that is replaced by a rename becomes visible to commands that already run, so if a folder contains nothing else, the
//! folder is covered instead of the file. Folders above the gateway's files are made mount points, too, because the kernel does
//! not rename or remove those: otherwise a process could put its own folder in their place, which the gateway would then use.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, Mode, OFlags, StatVfsMountFlags, access, statvfs};
use rustix::mount::{
    MountFlags, MountPropagationFlags, mount, mount_bind_recursive, mount_change, mount_remount,
};
use rustix::process::{getgid, getuid};
use rustix::thread::UnshareFlags;

use super::kernel::{MountNamespace, unshare};
use super::{Confinement, KeptPath};

/// Creates a mount namespace and a mount in it, to test if that is possible.
pub(super) fn try_out(kind: MountNamespace) -> io::Result<()> {
    make_namespace(kind)?;
    // Any folder can be used: no other process sees the mount, and this process ends.
    empty_folder(Path::new("/proc"))
}

/// Covers and hides the paths of a sandbox for this process and its descendants.
pub(super) fn cover(own: &Confinement, cwd: &Path) -> io::Result<()> {
    make_namespace(own.support.mounts)?;
    hold(own)?;
    let mut kept: Vec<KeptPath> = own.kept.clone();
    kept.sort();
    kept.dedup_by(|later, earlier| later.path == earlier.path);
    // The paths are opened before they are covered, and in the new namespace, since a mount can only be bound from its own
    // namespace.
    let kept: Vec<(KeptPath, OwnedFd)> = kept
        .into_iter()
        .filter_map(|kept| {
            let opened =
                rustix::fs::open(&kept.path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
            Some((kept, opened.ok()?))
        })
        .collect();
    let hidden: Vec<&PathBuf> = own
        .hidden
        .iter()
        .filter(|path| path.exists() && !own.covered.iter().any(|it| path.starts_with(it)))
        .collect();
    let mut nothing: Option<PathBuf> = None;
    let mut outermost: Vec<&PathBuf> = own.covered.iter().collect();
    outermost.sort();
    for folder in outermost {
        if !folder.is_dir() {
            continue;
        }
        empty_folder(folder)?;
        if nothing.is_none() && !hidden.is_empty() {
            let file = folder.join(".hidden");
            File::create(&file)?;
            fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o000))?;
            nothing = Some(file);
        }
        let mut placed: Vec<&Path> = Vec::new();
        for (path, opened) in kept.iter().filter(|(it, _)| it.path.starts_with(folder)) {
            if !placed.iter().any(|it| path.path.starts_with(it)) {
                place(&path.path, opened)?;
                placed.push(&path.path);
            }
            if !path.writable {
                make_read_only(&path.path)?;
            }
        }
        let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
        mount_remount(folder, MountFlags::BIND | flags, c"")?;
    }
    for file in hidden {
        let source = nothing.as_deref().unwrap_or(Path::new("/dev/null"));
        mount_bind_recursive(source, file)?;
    }
    if rustix::process::geteuid().is_root() {
        hide_devices(nothing.as_deref().unwrap_or(Path::new("/dev/null")));
    }
    // The working directory is entered again, because the current one still refers to the folder below the mounts.
    rustix::process::chdir(cwd)?;
    Ok(())
}

fn make_namespace(kind: MountNamespace) -> io::Result<()> {
    match kind {
        MountNamespace::None => return Ok(()),
        MountNamespace::Privileged => unshare(UnshareFlags::NEWNS)?,
        MountNamespace::User => {
            let (user, group) = (getuid().as_raw(), getgid().as_raw());
            unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNS)?;
            fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
            fs::write("/proc/self/setgroups", "deny")?;
            fs::write("/proc/self/gid_map", format!("{group} {group} 1"))?;
        }
    }
    // New mounts of the machine appear in this namespace, but mounts of this namespace do not appear elsewhere.
    let kind = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", kind).map_err(Into::into)
}

/// Protects paths that this process could otherwise replace: makes the folders above the gateway's files mount points, and its
/// programs read-only.
fn hold(own: &Confinement) -> io::Result<()> {
    let real = |path: &PathBuf| fs::canonicalize(path).ok();
    let programs: BTreeSet<PathBuf> = own.programs.iter().filter_map(real).collect();
    let files = own.covered.iter().chain(&own.hidden).filter_map(real);
    let files = files.chain(programs.iter().cloned());
    // A sorted set: a folder precedes the folders in it.
    let above: BTreeSet<PathBuf> = files
        .flat_map(|it| {
            it.ancestors()
                .skip(1)
                .map(Path::to_owned)
                .collect::<Vec<_>>()
        })
        .filter(|it| it.parent().is_some())
        .collect();
    for folder in above.iter().filter(|it| is_replaceable(it)) {
        mount_bind_recursive(folder, folder)?;
    }
    for program in &programs {
        let is_reachable = !own.covered.iter().any(|it| program.starts_with(it));
        if is_reachable && (is_replaceable(program) || is_writable(program)) {
            mount_bind_recursive(program, program)?;
            make_read_only(program)?;
        }
    }
    Ok(())
}

/// Returns true if this process could rename the path, or could grant itself the permission to do so.
fn is_replaceable(path: &Path) -> bool {
    path.parent().is_some_and(is_writable)
}

fn is_writable(path: &Path) -> bool {
    let is_owner = || rustix::fs::stat(path).is_ok_and(|it| it.st_uid == getuid().as_raw());
    access(path, Access::WRITE_OK).is_ok() || is_owner()
}

fn empty_folder(at: &Path) -> io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    mount("tmpfs", at, "tmpfs", flags, c"mode=0755,size=1m").map_err(Into::into)
}

/// Mounts an opened file or folder at its former path, within a folder that is now empty.
fn place(path: &Path, opened: &OwnedFd) -> io::Result<()> {
    let is_folder = rustix::fs::fstat(opened)?.st_mode & libc::S_IFMT == libc::S_IFDIR;
    if is_folder {
        fs::create_dir_all(path)?;
    } else {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        File::create(path)?;
    }
    let source = format!("/proc/self/fd/{}", opened.as_raw_fd());
    mount_bind_recursive(source, path).map_err(Into::into)
}

/// Makes the mount at a path read-only. Its other flags are kept, since a user namespace may not remove them.
fn make_read_only(path: &Path) -> io::Result<()> {
    let mut flags = MountFlags::BIND | MountFlags::RDONLY;
    let has = statvfs(path)?.f_flag;
    for (flag, mount_flag) in [
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
        (StatVfsMountFlags::NODIRATIME, MountFlags::NODIRATIME),
        (StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
    ] {
        if has.contains(flag) {
            flags |= mount_flag;
        }
    }
    match mount_remount(path, flags, c"") {
        // A path below another kept path is not a separate mount, so there is nothing to remount.
        Err(rustix::io::Errno::INVAL) => Ok(()),
        outcome => outcome.map_err(Into::into),
    }
}

/// Hides the devices of disks and memory. File permissions would not keep root from opening them.
fn hide_devices(nothing: &Path) {
    use std::os::unix::fs::FileTypeExt as _;
    let entries = fs::read_dir("/dev").into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        let is_memory = ["mem", "kmem", "port"].iter().any(|it| name == *it);
        if is_memory || entry.file_type().is_ok_and(|it| it.is_block_device()) {
            let _ = mount_bind_recursive(nothing, entry.path());
        }
    }
}
