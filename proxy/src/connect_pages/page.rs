//! HTML of the pages, without scripts, images or other files. The content security policy allows only the style in this file, and
//! forms that are sent to the page's own origin. Texts of other parties (names, URLs, reasons) are escaped.

use std::fmt::Write as _;
use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, LOCATION, REFERRER_POLICY, SET_COOKIE,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use http::{HeaderName, HeaderValue, StatusCode};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tooldock_upstream::reply::{Head, Reply};

use super::PageAddresses;

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:36rem;margin:3rem auto;padding:0 1rem;color:#1b1f24;\
background:#fff}h1{font-size:1.4rem}code{background:#eef1f4;padding:.1em .3em;border-radius:4px;overflow-wrap:anywhere}\
label{display:block;margin:1rem 0 .25rem}input{font:inherit;width:100%;box-sizing:border-box;padding:.5rem;border:1px solid \
#8b949e;border-radius:6px}button,a.go{display:inline-block;font:inherit;margin-top:1rem;padding:.5rem 1rem;border:0;\
border-radius:6px;background:#0b5cad;color:#fff;text-decoration:none;cursor:pointer}p.wrong{color:#a40e26}\
@media(prefers-color-scheme:dark){body{color:#e6edf3;background:#0d1117}code{background:#21262d}input{background:#0d1117;\
color:inherit}p.wrong{color:#ff7b72}}";

/// The content security policy, with the digest of the style.
static POLICY: LazyLock<HeaderValue> = LazyLock::new(|| {
    let style = STANDARD.encode(Sha256::digest(STYLE));
    let policy = format!(
        "default-src 'none'; style-src 'sha256-{style}'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    );
    HeaderValue::from_str(&policy).expect("visible ASCII")
});

/// Credential that a page asks its visitor for.
pub(crate) enum WantedAccess<'a> {
    /// Consent at an authorization server.
    Consent {
        /// Issuer of the authorization server.
        issuer: String,
        /// Requested scopes.
        scopes: &'a [String],
        /// URL at which the person consents.
        address: &'a str,
    },
    /// Personal values, which the visitor types into a form. Contains their names.
    Values(&'a [String]),
}

/// A page for the visitor of a link.
pub(crate) enum ConnectPage<'a> {
    /// Asks the visitor to sign in, with a key or at an issuer.
    SignIn {
        /// Namespace of the server.
        namespace: &'a str,
        /// Issuers at which the visitor can sign in.
        issuers: Vec<&'a str>,
        /// Reason why the last attempt failed.
        wrong: Option<&'a str>,
    },
    /// Contains a link to an issuer at which the visitor signs in.
    Leave {
        /// Issuer at which the visitor signs in.
        issuer: &'a str,
        /// URL for the browser.
        address: &'a str,
    },
    /// Explains to the signed-in principal which credential the server needs.
    Explain {
        /// Namespace of the server.
        namespace: &'a str,
        /// Name of the remote server's first backend, such as `host:port`; `None` for a server without backends.
        server: Option<String>,
        /// Name of the principal.
        principal: &'a str,
        /// Credential that the server needs.
        wanted: WantedAccess<'a>,
        /// Reason why the last attempt failed.
        wrong: Option<&'a str>,
    },
    /// Confirms that the credential is stored.
    Done,
    /// Contains the reason why the visitor cannot continue.
    Stop(&'a str),
}

impl ConnectPage<'_> {
    /// Returns the response with this page.
    pub(crate) fn reply(&self, status: StatusCode) -> Reply {
        let (title, body) = self.content();
        let html = format!(
            "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
             content=\"width=device-width\"><title>{title}</title><style>{STYLE}</style></head><body><main><h1>{title}</h1>{body}\
             </main></body></html>"
        );
        let mut head = safe(Head::new(status));
        let html_type = HeaderValue::from_static("text/html; charset=utf-8");
        head.headers.push((CONTENT_TYPE, html_type));
        Reply::Full {
            head,
            body: Bytes::from(html),
        }
    }

    fn content(&self) -> (&'static str, String) {
        match self {
            Self::SignIn {
                namespace,
                issuers,
                wrong,
            } => ("Sign in to connect", sign_in(namespace, issuers, *wrong)),
            Self::Leave { issuer, address } => (
                "Sign in to connect",
                format!(
                    "<p>Sign in at <code>{issuer}</code>.</p><a class=\"go\" href=\"{}\" rel=\"noreferrer\">Continue</a>",
                    escaped(address),
                    issuer = escaped(issuer)
                ),
            ),
            Self::Explain {
                namespace,
                server,
                principal,
                wanted,
                wrong,
            } => (
                "Connect a server",
                explain(namespace, server.as_deref(), principal, wanted, *wrong),
            ),
            Self::Done => (
                "Connected",
                "<p>The gateway can now act in your name at this server. A waiting call goes on by itself; you may close this \
                 page.</p>"
                    .to_owned(),
            ),
            Self::Stop(reason) => (
                "This does not work",
                format!("<p class=\"wrong\">{}</p>", escaped(reason)),
            ),
        }
    }
}

fn sign_in(namespace: &str, issuers: &[&str], wrong: Option<&str>) -> String {
    let mut body = wrong_text(wrong);
    let _ = write!(
        body,
        "<p>A call to the tools of <code>{}</code> needs a credential of the person who made it. Sign in to this gateway as that \
         person. If you have made no such call, close this page: another person may want to use your account.</p>",
        escaped(namespace)
    );
    for issuer in issuers {
        let issuer = escaped(issuer);
        let _ = write!(
            body,
            "<form method=\"post\"><input type=\"hidden\" name=\"issuer\" value=\"{issuer}\"><button>Sign in at {issuer}</button>\
             </form>"
        );
    }
    body.push_str(
        "<form method=\"post\" autocomplete=\"off\"><label for=\"key\">Key or token of the gateway, with which your client calls\
         </label><input id=\"key\" name=\"key\" type=\"password\" required autocomplete=\"off\"><button>Sign in</button></form>",
    );
    body
}

fn explain(
    namespace: &str,
    server: Option<&str>,
    principal: &str,
    wanted: &WantedAccess<'_>,
    wrong: Option<&str>,
) -> String {
    let mut body = wrong_text(wrong);
    let at = server.map_or_else(String::new, |it| format!(" (<code>{}</code>)", escaped(it)));
    let _ = write!(
        body,
        "<p>You are signed in to this gateway as <code>{}</code>. Its tools of <code>{}</code>{at} act in your name",
        escaped(principal),
        escaped(namespace)
    );
    match wanted {
        WantedAccess::Consent {
            issuer,
            scopes,
            address,
        } => {
            let scopes: Vec<_> = scopes
                .iter()
                .map(|it| format!("<code>{}</code>", escaped(it)))
                .collect();
            let scopes = match &*scopes {
                [] => String::new(),
                scopes => format!(" It asks for {}.", scopes.join(", ")),
            };
            let _ = write!(
                body,
                ", and the gateway needs your consent at <code>{issuer}</code>.{scopes} The gateway keeps the tokens encrypted, \
                 and sends them to this server alone.</p><a class=\"go\" href=\"{}\" rel=\"noreferrer\">Continue at {issuer}</a>",
                escaped(address),
                issuer = escaped(issuer)
            );
        }
        WantedAccess::Values(names) => {
            body.push_str(
                ", and the gateway needs your own values for that. It keeps them encrypted, and gives them to servers that ask for \
                 these names and are called by you.</p><form method=\"post\" autocomplete=\"off\">",
            );
            for name in *names {
                let name = escaped(name);
                let _ = write!(
                    body,
                    "<label for=\"{name}\"><code>{name}</code></label><input id=\"{name}\" name=\"value.{name}\" \
                     type=\"password\" required autocomplete=\"off\">"
                );
            }
            body.push_str("<button>Store</button></form>");
        }
    }
    body
}

fn wrong_text(wrong: Option<&str>) -> String {
    wrong.map_or_else(String::new, |reason| {
        format!("<p class=\"wrong\">{}</p>", escaped(reason))
    })
}

/// Returns a redirect (303) to another page. `location` is relative to the current page's URL, `cookie` a value of `Set-Cookie`.
/// `None` if one of them cannot be the value of a header.
pub(crate) fn see_other(location: &str, cookie: Option<&str>) -> Option<Reply> {
    let location = HeaderValue::from_str(location).ok()?;
    let mut head = safe(Head::new(StatusCode::SEE_OTHER)).with(LOCATION, location);
    if let Some(cookie) = cookie {
        head = with_cookie(head, cookie)?;
    }
    Some(Reply::Full {
        head,
        body: Bytes::new(),
    })
}

/// Adds a cookie to a page's response. `None` if the response is not complete, or the cookie cannot be the value of a header.
pub(crate) fn set(reply: Reply, cookie: &str) -> Option<Reply> {
    match reply {
        Reply::Full { head, body } => Some(Reply::Full {
            head: with_cookie(head, cookie)?,
            body,
        }),
        _ => None,
    }
}

fn with_cookie(head: Head, cookie: &str) -> Option<Head> {
    let mut value = HeaderValue::from_str(cookie).ok()?;
    value.set_sensitive(true);
    Some(head.with(SET_COOKIE, value))
}

/// Adds the security headers of a page.
fn safe(mut head: Head) -> Head {
    // The policy is not `no-referrer`: browsers would then send `Origin: null` with the page's form, and the form would be
    // refused.
    let fixed = [
        (CACHE_CONTROL, "no-store"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        (REFERRER_POLICY, "same-origin"),
        (
            HeaderName::from_static("cross-origin-opener-policy"),
            "same-origin",
        ),
        (
            HeaderName::from_static("cross-origin-resource-policy"),
            "same-origin",
        ),
    ];
    let fixed = fixed.map(|(name, value)| (name, HeaderValue::from_static(value)));
    head.headers.extend(fixed);
    head.headers.push((CONTENT_SECURITY_POLICY, POLICY.clone()));
    head
}

/// Returns the response with the client metadata document, which describes the gateway as an OAuth client to authorization
/// servers.
pub(crate) fn client_document(addresses: &PageAddresses) -> Reply {
    let document = json!({
        "client_id": addresses.client_document(),
        "client_name": "ToolDock",
        "redirect_uris": [addresses.callback()],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": "none",
    });
    let cache = HeaderValue::from_static("public, max-age=300");
    Reply::Full {
        head: Head::json(StatusCode::OK).with(CACHE_CONTROL, cache),
        body: document.to_string().into(),
    }
}

/// Escapes a text for HTML, in elements and in quoted attributes. Control characters become spaces.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(page: &ConnectPage<'_>) -> (Head, String) {
        let Reply::Full { head, body } = page.reply(StatusCode::OK) else {
            unreachable!("a page is a complete reply");
        };
        (head, String::from_utf8(body.to_vec()).expect("UTF-8"))
    }

    #[test]
    fn texts_from_outside_are_escaped() {
        let evil = "\"><script>alert('x')</script>&";
        for page in [
            ConnectPage::SignIn {
                namespace: evil,
                issuers: vec![evil],
                wrong: Some(evil),
            },
            ConnectPage::Leave {
                issuer: evil,
                address: evil,
            },
            ConnectPage::Explain {
                namespace: evil,
                server: Some(evil.into()),
                principal: evil,
                wanted: WantedAccess::Consent {
                    issuer: evil.into(),
                    scopes: &[evil.into()],
                    address: evil,
                },
                wrong: Some(evil),
            },
            ConnectPage::Explain {
                namespace: evil,
                server: None,
                principal: evil,
                wanted: WantedAccess::Values(&[evil.into()]),
                wrong: None,
            },
            ConnectPage::Stop(evil),
        ] {
            let (_, html) = text(&page);
            assert!(!html.contains("<script") && !html.contains(evil), "{html}");
            assert!(html.contains("&lt;script&gt;"), "{html}");
        }
    }

    #[test]
    fn a_page_runs_nothing_and_stands_in_no_frame() {
        let (head, html) = text(&ConnectPage::Done);
        let header = |name: HeaderName| {
            let found = head.headers.iter().find(|(own, _)| *own == name);
            found.map(|(_, value)| value.to_str().expect("text").to_owned())
        };
        let policy = header(CONTENT_SECURITY_POLICY).expect("a policy");
        assert!(policy.starts_with("default-src 'none'; style-src 'sha256-"));
        assert!(policy.contains("frame-ancestors 'none'"));
        assert!(!policy.contains("unsafe") && !policy.contains("script-src"));
        assert_eq!(header(CACHE_CONTROL).as_deref(), Some("no-store"));
        assert!(html.contains(&format!("<style>{STYLE}</style>")));
    }
}
