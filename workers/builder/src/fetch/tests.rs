//! Packages of registries on loopback, including hostile archives.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::json;
use tooldock_process::repositories::BuilderErrorCode;
use zip::write::SimpleFileOptions;

use super::*;

/// A registry that answers GET requests from a table until the test ends.
fn serve(make: impl FnOnce(SocketAddr) -> BTreeMap<String, Vec<u8>>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let answers = make(address);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let mut line = String::new();
            let mut path = None;
            while reader.read_line(&mut line).is_ok_and(|it| it > 2) {
                path = path.or_else(|| Some(line.split(' ').nth(1)?.to_owned()));
                line.clear();
            }
            let path = path.unwrap_or_default();
            let (status, body) = match answers.get(&path) {
                Some(body) if body.starts_with(b"Location:") => ("302 Found", &body[..]),
                Some(body) => ("200 OK", &body[..]),
                None => ("404 Not Found", &b""[..]),
            };
            let mut stream = stream;
            let head = match status {
                "302 Found" => format!(
                    "HTTP/1.1 302 Found\r\n{}\r\ncontent-length: 0\r\n",
                    String::from_utf8_lossy(body)
                ),
                _ => format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n", body.len()),
            };
            let _ = write!(stream, "{head}connection: close\r\n\r\n");
            if status == "200 OK" {
                let _ = stream.write_all(body);
            }
        }
    });
    address
}

fn config(address: SocketAddr) -> BuilderConfig {
    BuilderConfig {
        registry: format!("http://{address}"),
        ..BuilderConfig::default()
    }
}

fn fetch(address: SocketAddr) -> Fetch {
    let registries = Registries::from(|name| match name {
        "NPM_CONFIG_REGISTRY" => Some(format!("http://{address}")),
        "PIP_INDEX_URL" => Some(format!("http://{address}/simple")),
        _ => None,
    });
    Fetch::with(&config(address), registries.unwrap()).unwrap()
}

fn tarball(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
    for (path, content) in entries {
        let mut header = tar::Header::new_gnu();
        // Written byte by byte: the library refuses hostile paths.
        header.as_gnu_mut().unwrap().name[..path.len()].copy_from_slice(path.as_bytes());
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        header.set_cksum();
        builder.append(&header, *content).unwrap();
    }
    builder.into_inner().unwrap().finish().unwrap()
}

fn npm_document(address: SocketAddr, tarball: &[u8]) -> Vec<u8> {
    let integrity = format!("sha1-x sha512-{}", STANDARD.encode(Sha512::digest(tarball)));
    let document = json!({
        "dist-tags": {"latest": "1.2.0"},
        "versions": {"1.2.0": {"dist": {"tarball": format!("http://{address}/x.tgz"), "integrity": integrity}}}
    });
    serde_json::to_vec(&document).unwrap()
}

fn unpacked(
    name: &str,
    bytes: &[u8],
) -> (
    Result<(), BuilderError>,
    Vec<String>,
    BTreeMap<String, String>,
) {
    let temp = tempfile::tempdir().unwrap();
    let mut tree = Tree::new(temp.path().join("files"), 8 * 1024 * 1024);
    let result = archive::unpack(name, bytes, &mut tree);
    assert!(!temp.path().join("evil").exists());
    let files = tree.files().map(str::to_owned).collect();
    (result, files, tree.into_left_out())
}

#[test]
fn a_package_of_npm_is_found_checked_and_unpacked() {
    let archive = tarball(&[
        ("package/package.json", b"{}"),
        ("package/dist/index.js", b"f()"),
    ]);
    let address = serve(|address| {
        BTreeMap::from([
            ("/@scope%2fname".into(), npm_document(address, &archive)),
            ("/other".into(), npm_document(address, b"something else")),
            ("/x.tgz".into(), archive.clone()),
        ])
    });
    let (fetch, config) = (fetch(address), config(address));
    let package = fetch.find("@scope/name", &config, &|_| {}).unwrap();
    assert_eq!(package.address(), "npm:@scope/name");
    let temp = tempfile::tempdir().unwrap();
    let mut tree = Tree::new(temp.path().to_owned(), 1024 * 1024);
    assert_eq!(fetch.unpack(&package, &mut tree, &|_| {}).unwrap(), "1.2.0");
    assert_eq!(
        tree.files().collect::<Vec<_>>(),
        ["dist/index.js", "package.json"]
    );

    let changed = fetch.find("npm:other", &config, &|_| {}).unwrap();
    let error = fetch.unpack(&changed, &mut tree, &|_| {}).unwrap_err();
    assert!(error.message.contains("another digest"), "{error}");
    let missing = fetch.find("@scope/name@9", &config, &|_| {}).unwrap_err();
    assert!(
        missing.message.contains("no version 9") && missing.message.contains("1.2.0"),
        "{missing}"
    );
}

#[test]
fn a_package_of_pypi_is_found_where_npm_has_none() {
    let archive = tarball(&[("mcp_time-1.0/src/x.py", b"x = 1")]);
    let hash: String = Sha256::digest(&archive)
        .iter()
        .map(|it| format!("{it:02x}"))
        .collect();
    let page = format!(
        "<a href=\"../../files/mcp_time-1.0.tar.gz#sha256={hash}\">mcp_time-1.0.tar.gz</a>"
    );
    let address = serve(|_| {
        BTreeMap::from([
            ("/simple/mcp-time/".into(), page.into_bytes()),
            ("/files/mcp_time-1.0.tar.gz".into(), archive.clone()),
        ])
    });
    let (fetch, config) = (fetch(address), config(address));
    let package = fetch.find("mcp-time", &config, &|_| {}).unwrap();
    assert_eq!(package.address(), "pypi:mcp-time");
    let temp = tempfile::tempdir().unwrap();
    let mut tree = Tree::new(temp.path().to_owned(), 1024 * 1024);
    assert_eq!(fetch.unpack(&package, &mut tree, &|_| {}).unwrap(), "1.0");
    assert_eq!(tree.files().collect::<Vec<_>>(), ["src/x.py"]);
    let nowhere = fetch.find("mcp-nothing", &config, &|_| {}).unwrap_err();
    assert_eq!(nowhere.code, BuilderErrorCode::NotFound, "{nowhere}");
    assert!(
        nowhere.message.contains("PyPI") && nowhere.message.contains("npm"),
        "{nowhere}"
    );
}

#[test]
fn answers_of_a_registry_lead_to_no_other_private_address() {
    let inner = serve(|_| BTreeMap::from([("/secret".into(), b"hush".to_vec())]));
    let address = serve(|_| {
        let document = json!({"dist-tags": {"latest": "1"}, "versions": {"1": {"dist": {
            "tarball": format!("http://{inner}/secret"), "integrity": format!("sha512-{}", STANDARD.encode([0; 64]))}}}});
        BTreeMap::from([
            ("/direct".into(), serde_json::to_vec(&document).unwrap()),
            (
                "/redirected".into(),
                format!("Location: http://{inner}/secret").into_bytes(),
            ),
        ])
    });
    let (fetch, config) = (fetch(address), config(address));
    let package = fetch.find("npm:direct", &config, &|_| {}).unwrap();
    let temp = tempfile::tempdir().unwrap();
    let mut tree = Tree::new(temp.path().to_owned(), 1024);
    for error in [
        fetch.unpack(&package, &mut tree, &|_| {}).unwrap_err(),
        fetch.find("npm:redirected", &config, &|_| {}).unwrap_err(),
    ] {
        assert_eq!(error.code, BuilderErrorCode::Refused, "{error}");
        assert!(error.message.contains("127.0.0.1"), "{error}");
    }
}

#[test]
fn the_mcp_registry_is_searched_and_says_where_packages_are() {
    let answer = json!({"servers": [{"server": {"name": "a/github", "description": "d", "packages":
        [{"registryType": "pypi", "identifier": "mcp-github"}]}}]});
    let address = serve(|_| {
        let path = |query: &str| format!("/v0/servers?search={query}&version=latest&limit=100");
        BTreeMap::from([
            (path("github"), serde_json::to_vec(&answer).unwrap()),
            (path("mcp-github"), serde_json::to_vec(&answer).unwrap()),
            (path("odd"), b"<html>".to_vec()),
        ])
    });
    let (fetch, config) = (fetch(address), config(address));
    let rows = registry::search(fetch.client(), &config, "github").unwrap();
    assert_eq!(
        (rows[0].name.as_str(), rows[0].package.as_deref()),
        ("a/github", Some("mcp-github"))
    );
    assert_eq!(
        registry::kind_of(fetch.client(), &config, "mcp-github").as_deref(),
        Some("pypi")
    );
    let odd = registry::search(fetch.client(), &config, "odd").unwrap_err();
    assert!(
        odd.message.contains("does not answer as an MCP registry"),
        "{odd}"
    );
    let closed = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let away = BuilderConfig {
        registry: format!("http://{closed}"),
        ..config
    };
    let fetch = Fetch::with(&away, Registries::from(|_| None).unwrap()).unwrap();
    let error = registry::search(fetch.client(), &away, "github").unwrap_err();
    assert_eq!(error.code, BuilderErrorCode::Unavailable);
    assert!(error.message.contains("MCP_REGISTRY_URL"), "{error}");
}

#[test]
fn hostile_tarballs_write_nothing_outside_and_end() {
    let (result, files, left_out) = unpacked(
        "x.tgz",
        &tarball(&[
            ("../evil", b"x"),
            ("package/../../evil", b"x"),
            ("/evil", b"x"),
            ("package/ok.js", b"x"),
        ]),
    );
    result.unwrap();
    assert_eq!(files, ["ok.js"]);
    assert_eq!(left_out.len(), 3, "{left_out:?}");

    let mut builder = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
    for (kind, name) in [
        (tar::EntryType::Symlink, "package/l"),
        (tar::EntryType::Link, "package/h"),
        (tar::EntryType::Fifo, "package/f"),
    ] {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(0);
        builder
            .append_link(&mut header, name, "/etc/passwd")
            .unwrap();
    }
    let bytes = builder.into_inner().unwrap().finish().unwrap();
    let (result, files, left_out) = unpacked("x.tgz", &bytes);
    result.unwrap();
    assert!(files.is_empty());
    assert_eq!(left_out.len(), 3, "{left_out:?}");

    // Packed, it has a thousandth of this size.
    let zeros = vec![0; 1024 * 1024];
    let bomb = tarball(
        &(0..9)
            .map(|_| ("package/a", &zeros[..]))
            .collect::<Vec<_>>(),
    );
    let (result, ..) = unpacked("x.tgz", &bomb);
    assert_eq!(result.unwrap_err().code, BuilderErrorCode::TooLarge);
    for damaged in [&b"no archive"[..], &bomb[..bomb.len() / 2], b""] {
        assert!(unpacked("x.tgz", damaged).0.is_err());
    }
}

#[test]
fn hostile_zip_files_write_nothing_outside_and_end() {
    let mut writer = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default();
    for name in ["../evil", "/evil", "..\\evil", "a/../../evil", "ok.py"] {
        writer.start_file(name, options).unwrap();
        writer.write_all(b"x = 1").unwrap();
    }
    writer.add_symlink("link", "/etc/passwd", options).unwrap();
    writer.start_file("zeros", options).unwrap();
    writer.write_all(&vec![0; 2 * 1024 * 1024]).unwrap();
    let bytes = writer.finish().unwrap().into_inner();
    let (result, files, left_out) = unpacked("https://h/x-1-py3-none-any.whl#x", &bytes);
    result.unwrap();
    assert_eq!(files, ["ok.py"]);
    assert_eq!(left_out.len(), 6, "{left_out:?}");
    // The size in the directory at the end is false.
    let mut lying = bytes.clone();
    let packed = 5_u32.to_le_bytes();
    for at in 0..lying.len() - 4 {
        if lying[at..at + 4] == packed {
            lying[at..at + 4].copy_from_slice(&3_u32.to_le_bytes());
        }
    }
    let (_, files, _) = unpacked("x.whl", &lying);
    assert!(!files.contains(&"ok.py".to_owned()), "{files:?}");
    assert!(unpacked("x.zip", b"PK no archive").0.is_err());
}

#[test]
fn names_of_packages_are_read_with_their_place_and_version() {
    let read = |text: &str| parse(text).map(|it| (it.kind, it.name, it.version));
    let some = |it: &str| Some(it.to_owned());
    assert_eq!(
        read("@a/b@1.2"),
        Ok((Some(PackageRegistry::Npm), "@a/b".into(), some("1.2")))
    );
    assert_eq!(
        read("mcp-time==1.0"),
        Ok((None, "mcp-time".into(), some("1.0")))
    );
    assert_eq!(
        read("pypi:mcp_time"),
        Ok((Some(PackageRegistry::Pypi), "mcp_time".into(), None))
    );
    for bad in [
        "../x",
        "@a",
        "a/b",
        "npm:",
        "docker:x",
        "a b",
        "-x",
        "@a/../b",
        "pypi:@a/b",
        "a==",
        "https://h/x",
    ] {
        assert_eq!(
            read(bad).unwrap_err().code,
            BuilderErrorCode::Invalid,
            "{bad}"
        );
    }
}
