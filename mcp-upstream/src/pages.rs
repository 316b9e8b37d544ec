//! `/ui/`: serves a single-page app from a directory (RST-20).
//!
//! The complete directory is read at the start and at every reload, within limits, and kept in memory. A request's path is
//! looked up among the files that were read, so no path can refer to a file outside. Symbolic links to targets outside the
//! directory and names that begin with a dot are ignored.

use std::collections::HashMap;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, LOCATION, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderValue, StatusCode};
use sha2::{Digest as _, Sha256};
use tooldock_base::regular_file;

use crate::error;
use crate::reply::{Head, Reply};

/// Maximum number of files of a single-page app.
const FILES_MAX: usize = 5_000;
/// Maximum size of one file of a single-page app, in bytes.
const FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Maximum size of all files of a single-page app together, in bytes.
const TOTAL_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Maximum nesting depth of the folders of a single-page app.
const DEPTH_MAX: usize = 16;
/// The file that is sent for a path without a file of its own.
const INDEX: &str = "index.html";

/// The files of a single-page app, read from a directory into memory.
#[derive(Debug)]
pub struct Pages {
    /// The app's directory, with symbolic links resolved.
    root: PathBuf,
    files: ArcSwap<Files>,
}

type Files = HashMap<Box<str>, Arc<Page>>;

#[derive(Debug)]
struct Page {
    body: Bytes,
    content_type: &'static str,
    etag: HeaderValue,
}

impl Pages {
    /// Reads the files of a single-page app from a directory.
    ///
    /// # Errors
    ///
    /// A single line of text, if the directory or one of its files cannot be read, or if a limit is exceeded.
    pub fn read(root: &Path) -> Result<Self, String> {
        let real = root
            .canonicalize()
            .map_err(|error| format!("{}: {error}", root.display()))?;
        if !real.is_dir() {
            return Err(format!("{} is no directory", root.display()));
        }
        let files = read(&real)?;
        Ok(Self {
            root: real,
            files: ArcSwap::from_pointee(files),
        })
    }

    /// Reads the app's directory again. If that fails, the files read before are still served.
    pub fn refresh(&self) {
        match read(&self.root) {
            Ok(files) => self.files.store(Arc::new(files)),
            Err(reason) => {
                tracing::error!(reason, "/ui/ is served as it was before");
            }
        }
    }

    /// Answers a request. `path`: the decoded path below `/ui/`, or `None` for `/ui` itself. `prefix`: the listener's path
    /// prefix. `known`: the value of `If-None-Match`.
    pub(crate) fn get(&self, path: Option<&str>, prefix: &str, known: Option<&str>) -> Reply {
        let Some(path) = path else {
            let to = HeaderValue::try_from(format!("{prefix}/ui/"));
            let head = Head::new(StatusCode::PERMANENT_REDIRECT);
            let head = to
                .into_iter()
                .fold(head, |head, to| head.with(LOCATION, to));
            return full(head, Bytes::new());
        };
        let files = self.files.load();
        let Some(page) = files.get(path).or_else(|| match is_asset(path) {
            true => None,
            // The path is an address inside the app. The app's page is sent, and its script shows the right view.
            false => files.get(INDEX),
        }) else {
            return error::rest_plain(StatusCode::NOT_FOUND, "not_found", "No such file");
        };
        let is_known = known.is_some_and(|known| lists(known, &page.etag));
        let status = match is_known {
            true => StatusCode::NOT_MODIFIED,
            false => StatusCode::OK,
        };
        let head = Head::new(status)
            .with(ETAG, page.etag.clone())
            .with(CACHE_CONTROL, HeaderValue::from_static("no-cache"))
            .with(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"))
            .with(CONTENT_TYPE, HeaderValue::from_static(page.content_type));
        full(
            head,
            if is_known {
                Bytes::new()
            } else {
                page.body.clone()
            },
        )
    }
}

fn full(head: Head, body: Bytes) -> Reply {
    Reply::Full { head, body }
}

/// Returns true if the value of `If-None-Match` contains this entity tag.
fn lists(known: &str, tag: &HeaderValue) -> bool {
    let mut tags = known.split(',').map(str::trim);
    tags.any(|known| {
        known == "*" || known.strip_prefix("W/").unwrap_or(known).as_bytes() == tag.as_bytes()
    })
}

/// Returns true if a path's extension is that of a file such as a script or an image. If the file is missing, the response is
/// 404 instead of the app's page.
fn is_asset(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    name.rsplit_once('.')
        .is_some_and(|(_, end)| end != "html" && known_type(end).is_some())
}

/// Returns the media type for a file extension; `None` for an unknown extension.
fn known_type(end: &str) -> Option<&'static str> {
    Some(match end.to_ascii_lowercase().as_str() {
        "html" | "htm" => "text/html; charset=utf-8",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "json" | "map" => "application/json",
        "webmanifest" => "application/manifest+json",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "webp" => "image/webp",
        "avif" => "image/avif",
        "ico" => "image/x-icon",
        "woff" => "font/woff",
        "woff2" => "font/woff2",
        "ttf" => "font/ttf",
        "otf" => "font/otf",
        "wasm" => "application/wasm",
        "txt" | "md" => "text/plain; charset=utf-8",
        "xml" => "application/xml",
        "pdf" => "application/pdf",
        "mp3" => "audio/mpeg",
        "mp4" => "video/mp4",
        "webm" => "video/webm",
        _ => return None,
    })
}

/// Reads all files of a directory. The keys are the files' paths relative to the directory.
fn read(root: &Path) -> Result<Files, String> {
    let mut files = Files::new();
    let mut total = 0;
    let mut open = vec![(root.to_owned(), String::new(), 0)];
    while let Some((folder, at, depth)) = open.pop() {
        let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
        for entry in fs::read_dir(&folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            let Some(name) = name.to_str().filter(|name| !name.starts_with('.')) else {
                continue;
            };
            let path = entry.path();
            let Some(real) = path.canonicalize().ok().filter(|it| it.starts_with(root)) else {
                tracing::warn!(path = %path.display(), "not served below /ui/: the link leads out of the directory");
                continue;
            };
            let key = format!("{at}{name}");
            let metadata = fs::metadata(&real).map_err(failed)?;
            if metadata.is_dir() {
                if depth == DEPTH_MAX {
                    return Err(format!(
                        "{} is nested deeper than {DEPTH_MAX} folders",
                        path.display()
                    ));
                }
                open.push((real, format!("{key}/"), depth + 1));
            } else if metadata.is_file() {
                let page = page(&real, name)?;
                total += page.body.len() as u64;
                files.insert(key.into(), Arc::new(page));
                if files.len() > FILES_MAX || total > TOTAL_BYTES_MAX {
                    return Err(format!(
                        "{} has more than {FILES_MAX} files or {} MiB, which is no app",
                        root.display(),
                        TOTAL_BYTES_MAX >> 20
                    ));
                }
            }
        }
    }
    Ok(files)
}

fn page(path: &Path, name: &str) -> Result<Page, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let mut body = Vec::new();
    let file = regular_file::open_following(path).map_err(failed)?;
    file.take(FILE_BYTES_MAX + 1)
        .read_to_end(&mut body)
        .map_err(failed)?;
    if body.len() as u64 > FILE_BYTES_MAX {
        let most = FILE_BYTES_MAX >> 20;
        return Err(format!("{} is larger than {most} MiB", path.display()));
    }
    let digest = Sha256::digest(&body);
    let tag: String = digest[..12]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let end = name.rsplit_once('.').map_or("", |(_, end)| end);
    Ok(Page {
        body: body.into(),
        content_type: known_type(end).unwrap_or("application/octet-stream"),
        etag: HeaderValue::try_from(format!("\"{tag}\"")).expect("hexadecimal digits"),
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn app() -> (tempfile::TempDir, Pages) {
        let parent = tempfile::tempdir().expect("a directory");
        let root = parent.path().join("app");
        fs::create_dir_all(root.join("assets")).expect("a folder");
        fs::write(parent.path().join("secret.txt"), "secret").expect("a file");
        fs::write(root.join("index.html"), "<p>index").expect("a file");
        fs::write(root.join("assets/app.js"), "let a").expect("a file");
        fs::write(root.join("assets/data.bin"), [0]).expect("a file");
        fs::write(root.join(".env"), "TOKEN=1").expect("a file");
        symlink(parent.path().join("secret.txt"), root.join("out.txt")).expect("a link");
        symlink(root.join("assets/app.js"), root.join("in.js")).expect("a link");
        symlink(parent.path(), root.join("up")).expect("a link");
        let pages = Pages::read(&root).expect("an app");
        (parent, pages)
    }

    fn got(pages: &Pages, path: &str) -> (u16, String, String) {
        let reply = pages.get(Some(path), "", None);
        let Reply::Full { head, body } = reply else {
            panic!("not whole")
        };
        let header = |name| {
            let found = head.headers.iter().find(|(known, _)| *known == name);
            found.map_or(String::new(), |(_, value)| {
                value.to_str().expect("text").to_owned()
            })
        };
        let body = String::from_utf8_lossy(&body).into_owned();
        (head.status.as_u16(), header(CONTENT_TYPE), body)
    }

    #[test]
    fn files_are_served_and_every_other_page_is_the_index() {
        let (_parent, pages) = app();
        for path in ["", "index.html", "deep/link", "user/john.doe", "up/secret"] {
            let (status, kind, body) = got(&pages, path);
            assert_eq!((status, body.as_str()), (200, "<p>index"), "{path}");
            assert_eq!(kind, "text/html; charset=utf-8");
        }
        for path in ["assets/app.js", "in.js"] {
            let (status, kind, body) = got(&pages, path);
            assert_eq!((status, body.as_str()), (200, "let a"));
            assert_eq!(kind, "text/javascript; charset=utf-8");
        }
        assert_eq!(got(&pages, "assets/data.bin").1, "application/octet-stream");
    }

    #[test]
    fn nothing_outside_and_nothing_hidden_is_served() {
        let (_parent, pages) = app();
        for path in [
            "out.txt",
            "up/secret.txt",
            "../secret.txt",
            "assets/../../secret.txt",
            "/etc/passwd.txt",
            "..\\secret.txt",
            "C:\\secret.txt",
            "assets/missing.js",
            "index.html\0.js",
        ] {
            let (status, _, body) = got(&pages, path);
            assert_eq!(status, 404, "{path:?}");
            assert!(!body.contains("secret\""), "{body}");
        }
        assert_eq!(got(&pages, ".env").2, "<p>index");
    }

    #[test]
    fn a_client_that_has_the_file_is_told_so() {
        let (_parent, pages) = app();
        let etag = |reply: &Reply| {
            let headers = &reply.head().headers;
            let found = headers.iter().find(|(name, _)| *name == ETAG);
            found.expect("a tag").1.to_str().expect("text").to_owned()
        };
        let tag = etag(&pages.get(Some(""), "", None));
        for (known, status) in [
            (tag.clone(), 304),
            (format!("\"x\", W/{tag}"), 304),
            ("*".to_owned(), 304),
            ("\"x\"".to_owned(), 200),
        ] {
            let reply = pages.get(Some(""), "", Some(&known));
            assert_eq!(reply.head().status.as_u16(), status, "{known}");
        }
        let moved = pages.get(None, "/front", None);
        assert_eq!(moved.head().status.as_u16(), 308);
        assert_eq!(moved.head().headers[0].1, "/front/ui/");
    }

    #[test]
    fn a_reload_brings_what_is_there_now_and_an_app_that_is_gone_stays() {
        let (parent, pages) = app();
        let root = parent.path().join("app");
        fs::write(root.join("index.html"), "<p>new").expect("a file");
        assert_eq!(got(&pages, "").2, "<p>index");
        pages.refresh();
        assert_eq!(got(&pages, "").2, "<p>new");
        fs::remove_dir_all(&root).expect("removed");
        pages.refresh();
        assert_eq!(got(&pages, "").2, "<p>new");
        let missing = Pages::read(&root).expect_err("gone");
        assert!(
            missing.starts_with(root.to_str().expect("text")),
            "{missing}"
        );
    }
}
