//! The key `observability.access_log`: the access log, with its format.

use crate::report::Report;
use crate::scope::Level;
use crate::tree::Directive;
use crate::values::{Piece, pieces};
use crate::view::View;
use crate::yaml_text::Map;

/// Adds the access log of the first proxied location that has one.
pub(crate) fn write(view: &View<'_>, top: &mut Map, report: &mut Report) {
    let locations = view.sites.locations.iter();
    let all = locations.flat_map(|it| it.scope.all("access_log")).copied();
    let (off, logs): (Vec<&Directive>, Vec<_>) = all.partition(|it| it.first() == "off");
    let Some(log) = logs.first().copied() else {
        return;
    };
    for at in off {
        list_off(at, report);
    }
    for other in logs.iter().filter(|it| !std::ptr::eq(**it, log)) {
        let why = format!("there is one access log, that of {}", log.place);
        report.plain(other, why);
    }
    let path = match log.first() {
        "/dev/stdout" => "stdout",
        path if path.starts_with("syslog:") || path.contains('$') => {
            let why = "the access log goes to a file or to standard output: collect it from there";
            report.plain(log, why);
            return;
        }
        path => {
            report.path(log);
            path
        }
    };
    if log.option("if").is_some() {
        report.plain(log, "every request has a line: the condition is left out");
    }
    let mut entry = Map::default();
    entry.add("path", path);
    let name = log
        .arg(1)
        .filter(|name| !name.contains('=') && *name != "combined");
    if let Some(name) = name {
        let mut formats = view.sites.http.all("log_format").iter();
        let format = formats.find(|it| it.first() == name);
        match format.and_then(|at| Some((pattern(at, view, report)?, at))) {
            Some((text, at)) => entry.add_at("format", text, at),
            None => report.plain(
                log,
                "this format cannot be read: lines are in the format combined",
            ),
        }
    }
    let mut observability = Map::default();
    observability.add_at("access_log", entry, log);
    top.add("observability", observability);
}

/// Reports `access_log off` of a location that answers requests itself, such as a location for health checks.
pub(crate) fn list_without(level: &Level<'_>, report: &mut Report) {
    if let Some(off) = level.last("access_log").filter(|it| it.first() == "off") {
        list_off(off, report);
    }
}

fn list_off(off: &Directive, report: &mut Report) {
    let why = "every request has a line in the access log, if there is one: leave these out where the log is read";
    report.plain(off, why);
}

/// Converts a log format of nginx to the gateway's, with `-` in place of variables that the gateway does not have. A variable by
/// which a `map` names a token or a certificate becomes the name of the principal.
fn pattern(format: &Directive, view: &View<'_>, report: &mut Report) -> Option<String> {
    if format.option("escape").is_some_and(|it| it != "default") {
        let why = "values are escaped as \\xHH: for lines that are JSON, write format: json";
        report.plain(format, why);
    }
    let words = format.args().skip(1);
    let text: String = words.filter(|it| !it.starts_with("escape=")).collect();
    let mut known = String::new();
    let mut unknown: Vec<String> = Vec::new();
    for piece in pieces(&text) {
        match piece {
            Piece::Text(text) => {
                // A variable's name ends before this text.
                let joins = |c: char| c.is_ascii_alphanumeric() || c == '_';
                let dollar = known
                    .rfind('$')
                    .filter(|at| known[at + 1..].chars().all(joins));
                if let (true, Some(at)) = (text.starts_with(joins), dollar) {
                    known.insert(at + 1, '{');
                    known.push('}');
                }
                known.push_str(&text.replace('$', "$$"));
            }
            Piece::Variable(name) => {
                let names_client = view.variables.names_client(name);
                let field = format!("${}", if names_client { "remote_user" } else { name });
                if (view.gateway.allows_log_format)(&field) {
                    known.push_str(&field);
                    continue;
                }
                if !unknown.contains(&field) {
                    unknown.push(field);
                }
                known.push('-');
            }
        }
    }
    if !unknown.is_empty() {
        let names = unknown.join(", ");
        report.plain(format, format!("{names}: the gateway has no such variable, and \"-\" stands there; docs/operating.md lists those it has"));
    }
    (view.gateway.allows_log_format)(&known).then_some(known)
}
