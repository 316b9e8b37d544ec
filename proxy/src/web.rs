//! The page of the web UI and its files. They are built from `proxy/web/` and compiled into the binary; no file is read at run
//! time.
//!
//! All code and content of the page comes from this binary. The page's content security policy forbids inline scripts, other
//! servers and frames. Therefore a tool's text that is shown in the page can neither run nor send data to other servers.

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

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
    font-src 'self'; connect-src 'self'; manifest-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

/// Security headers that are added to each response, besides its content type.
const SAFETY: [(HeaderName, HeaderValue); 6] = [
    (CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
    (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
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

static ASSETS: LazyLock<[Asset; 3]> = LazyLock::new(|| {
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
    head.headers.extend(SAFETY);
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
            "/assets/../app.js",
            "/assets//app.js",
            "/assets/app.js/",
            "/app.js",
        ] {
            assert!(asset(&request(path, None)).is_none(), "{path}");
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
