//! The page of the web UI and its files. They are built from `proxy/web/` and compiled into the binary; no file is read at run
//! time.
//!
//! All code and content of the page comes from this binary. The page's content security policy forbids inline scripts, other
//! servers, and frames of other servers. Therefore a tool's text that is shown in the page can neither run nor send data to other
//! servers. The page of a tool runs in a frame with a policy of its own ([`FRAME`]).

use std::io::Write as _;
use std::sync::LazyLock;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{
    ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE,
    REFERRER_POLICY, VARY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use tooldock_upstream::reply::{Head, Reply};

/// Content security policy of the page. `frame-src` also keeps the frame of a tool's page from leaving for another host. The frame
/// may still navigate to a path of this host, but the tool's page cannot read the response.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; \
    connect-src 'self'; manifest-src 'self'; frame-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

/// Content security policy of the frame in which the page of a tool is shown (MCP Apps). The page may run its own scripts, in an
/// separate origin without cookies and storage. Requests to any host are forbidden, except WebRTC, which no policy can forbid.
const FRAME_POLICY: &str = "sandbox allow-scripts allow-forms; default-src 'none'; script-src 'unsafe-inline'; \
    style-src 'unsafe-inline'; img-src data: blob:; media-src data: blob:; font-src data:; frame-ancestors 'self'; \
    base-uri 'none'; form-action 'none'";

/// Security headers that are added to each response, besides its content type, its policy, and the pages that may frame it.
const SAFETY: [(HeaderName, HeaderValue); 4] = [
    (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        HeaderValue::from_static("same-origin"),
    ),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        HeaderValue::from_static("same-origin"),
    ),
];

/// A file of the web UI, plain and compressed.
struct Asset {
    name: &'static str,
    content_type: &'static str,
    plain: &'static [u8],
    /// The file's compressed content. It is computed at its first use.
    gzip: LazyLock<Bytes, Box<dyn FnOnce() -> Bytes + Send>>,
}

impl Asset {
    fn new(name: &'static str, content_type: &'static str, plain: &'static [u8]) -> Self {
        Self {
            name,
            content_type,
            plain,
            gzip: LazyLock::new(Box::new(move || compressed(plain))),
        }
    }
}

static PAGE: LazyLock<Asset> = LazyLock::new(|| {
    let page = include_bytes!("../web/dist/index.html");
    Asset::new("", "text/html; charset=utf-8", page)
});

/// Name of the document in which the page of a tool is shown.
const FRAME: &str = "frame.html";

static ASSETS: LazyLock<[Asset; 4]> = LazyLock::new(|| {
    [
        Asset::new(
            "app.js",
            "text/javascript; charset=utf-8",
            include_bytes!("../web/dist/app.js"),
        ),
        Asset::new(
            "app.css",
            "text/css; charset=utf-8",
            include_bytes!("../web/dist/app.css"),
        ),
        Asset::new(
            "icon.svg",
            "image/svg+xml",
            include_bytes!("../web/dist/icon.svg"),
        ),
        Asset::new(
            FRAME,
            "text/html; charset=utf-8",
            include_bytes!("../web/dist/frame.html"),
        ),
    ]
});

/// The response with the page of the web UI.
pub(crate) fn page(request: &Parts) -> Reply {
    answer(&PAGE, request, HeaderValue::from_static("no-store"))
}

/// The response with a file below `/assets/`. `None` if there is no such file.
pub(crate) fn asset(request: &Parts) -> Option<Reply> {
    let name = request.uri.path().strip_prefix("/assets/")?;
    let asset = ASSETS.iter().find(|asset| asset.name == name)?;
    // A URL with a digest of the content, as used by the page, may be cached forever. Any other URL must be revalidated.
    let query = request.uri.query().unwrap_or_default();
    let kept = match query.starts_with("v=") {
        true => "public, max-age=31536000, immutable",
        false => "no-cache",
    };
    Some(answer(asset, request, HeaderValue::from_static(kept)))
}

fn answer(asset: &Asset, request: &Parts, cache: HeaderValue) -> Reply {
    let mut head = Head::new(StatusCode::OK)
        .with(CONTENT_TYPE, HeaderValue::from_static(asset.content_type))
        .with(CACHE_CONTROL, cache)
        .with(VARY, HeaderValue::from_static("Accept-Encoding"));
    let (policy, framed_by) = match asset.name {
        FRAME => (FRAME_POLICY, "SAMEORIGIN"),
        _ => (POLICY, "DENY"),
    };
    head.headers.extend(SAFETY);
    head.headers.extend([
        (CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy)),
        (X_FRAME_OPTIONS, HeaderValue::from_static(framed_by)),
    ]);
    if !takes_gzip(&request.headers) {
        let body = Bytes::from_static(asset.plain);
        return Reply::Full { head, body };
    }
    Reply::Full {
        head: head.with(CONTENT_ENCODING, HeaderValue::from_static("gzip")),
        body: asset.gzip.clone(),
    }
}

/// Returns true if the header `Accept-Encoding` contains gzip with a weight above 0.
fn takes_gzip(headers: &HeaderMap) -> bool {
    let values = headers.get_all(ACCEPT_ENCODING).iter();
    let mut codings = values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','));
    codings.any(|coding| {
        let mut parts = coding.split(';').map(str::trim);
        let named = parts
            .next()
            .is_some_and(|name| name.eq_ignore_ascii_case("gzip"));
        let refused = parts.any(|parameter| {
            let weight = parameter.strip_prefix("q=");
            weight.is_some_and(|weight| weight.trim_matches(['0', '.']).is_empty())
        });
        named && !refused
    })
}

fn compressed(plain: &[u8]) -> Bytes {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    let written = encoder.write_all(plain);
    let finished = written.and_then(|()| encoder.finish());
    Bytes::from(finished.expect("writing into memory does not fail"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(path: &str, encoding: Option<&str>) -> Parts {
        let mut request = http::Request::get(path);
        if let Some(encoding) = encoding {
            request = request.header(ACCEPT_ENCODING, encoding);
        }
        request.body(()).expect("a request").into_parts().0
    }

    #[test]
    fn only_files_of_the_page_are_there() {
        for path in ["/assets/app.js", "/assets/app.css?v=1", "/assets/icon.svg"] {
            assert!(asset(&request(path, None)).is_some(), "{path}");
        }
        for path in [
            "/assets/",
            "/assets/index.html",
            "/assets/frame",
            "/assets/../app.js",
            "/assets//app.js",
            "/assets/app.js/",
            "/app.js",
        ] {
            assert!(asset(&request(path, None)).is_none(), "{path}");
        }
    }

    #[test]
    fn only_the_frame_of_tools_pages_runs_inline_scripts_and_it_has_no_origin() {
        for (path, inline, framed) in [
            ("/assets/frame.html", true, "SAMEORIGIN"),
            ("/assets/app.js", false, "DENY"),
        ] {
            let answered = asset(&request(path, None)).expect("there");
            let header = |wanted: &HeaderName| {
                let headers = &answered.head().headers;
                let mut found = headers.iter().filter(|(name, _)| name == wanted);
                let (_, value) = found.next().expect("a header");
                assert!(found.next().is_none(), "{wanted} is there twice");
                value.to_str().expect("text").to_owned()
            };
            let policy = header(&CONTENT_SECURITY_POLICY);
            assert_eq!(policy.contains("'unsafe-inline'"), inline, "{policy}");
            assert_eq!(
                policy.starts_with("sandbox allow-scripts allow-forms;"),
                inline
            );
            assert!(!policy.contains("allow-same-origin"), "{policy}");
            assert_eq!(header(&X_FRAME_OPTIONS), framed);
        }
    }

    #[test]
    fn gzip_is_for_those_who_ask_for_it() {
        for (encoding, expected) in [
            (Some("gzip"), true),
            (Some("br, GZIP;q=0.5"), true),
            (Some("gzip;q=0"), false),
            (Some("gzip;q=0.0"), false),
            (Some("br"), false),
            (None, false),
        ] {
            let answered = asset(&request("/assets/app.js?v=1", encoding)).expect("there");
            let headers = &answered.head().headers;
            let coded = headers.iter().any(|(name, _)| *name == CONTENT_ENCODING);
            assert_eq!(coded, expected, "{encoding:?}");
        }
    }

    #[test]
    fn the_whole_ui_is_small() {
        let sizes = ASSETS.iter().map(|asset| asset.gzip.len());
        let all: usize = sizes.sum::<usize>() + PAGE.gzip.len();
        assert!(all < 300 * 1024, "{all} bytes compressed");
    }
}
