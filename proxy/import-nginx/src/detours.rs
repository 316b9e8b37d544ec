//! Directives by which nginx may answer a request in another way than by the `proxy_pass` of its location: `try_files`,
//! `error_page`, and a second directive that generates responses.

use crate::report::Report;
use crate::scope::Level;
use crate::sites::Sites;

/// Report line for an `error_page`. If it refers to another location, nginx may admit a request there that the gateway refuses.
const PAGES: &str = "errors are JSON with stable codes, see docs/http.md: no error leads to another location or address";

/// Reports `try_files`, `error_page` and second directives that generate responses, for all proxied locations.
pub(crate) fn list(sites: &Sites<'_>, report: &mut Report) {
    for location in sites.locations.iter().filter(|it| it.pass.is_some()) {
        for page in location.scope.all("error_page") {
            report.plain(page, PAGES);
        }
        // The other directives apply only in their own location.
        for at in location.scope.own() {
            match at.name() {
                "try_files" => report.security(at, "requests go to a file, to another location or to an error in nginx, and none to the server of this location: leave the server out of upstreams.remote, or take try_files out"),
                "proxy_pass" => {}
                name if answers(name) => report.security(at, "answers requests beside proxy_pass, and the later one of the two counts in nginx: take out the one that does nothing"),
                _ => {}
            }
        }
    }
}

/// Reports the `error_page` directives of a location that answers requests itself.
pub(crate) fn list_pages(level: &Level<'_>, report: &mut Report) {
    for page in level.all("error_page") {
        report.plain(page, PAGES);
    }
}

/// Returns true if a directive answers all requests of a location. If a location has several of them, the last one is used.
fn answers(name: &str) -> bool {
    let begins = name.starts_with("content_by_lua") || name.ends_with("_pass");
    begins || matches!(name, "js_content" | "empty_gif" | "perl" | "echo")
}
