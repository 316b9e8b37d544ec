//! Elicitation in URL mode: a server sends its user to a page, such as a login, in place of asking for values.
//!
//! | 2025-11-25 | 2026-07-28 |
//! |---|---|
//! | request `elicitation/create` with `mode: "url"` and an `elicitationId` | entry of `inputRequests` without that id |
//! | error −32042 with a list of elicitations; the client repeats its request | no such error: `input_required` |
//! | `notifications/elicitation/complete` once the user is done | none: the server delays the retry, or requires input again |

use bytes::Bytes;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use tooldock_process::worker::{AskMethod, OPEN_QUESTIONS_MAX, Question};

use crate::jsonrpc::spans::{self, MemberEdit};
use crate::version::code;

/// Key of the id of an elicitation in URL mode. Only 2025-11-25 has this id.
const ID: &str = "elicitationId";
/// Maximum length of a page's URL, in bytes.
const URL_MAX: usize = 4096;
/// Maximum length of the text about a page, in bytes.
const MESSAGE_MAX: usize = 4096;

/// Method of the notification that a server sends once the user has completed an elicitation in URL mode.
pub const COMPLETED: &str = "notifications/elicitation/complete";

/// A page that the user of a client is asked to open.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ElicitationLink {
    /// URL of the page.
    pub url: String,
    /// Text that tells the user why the page must be opened.
    #[serde(default)]
    pub message: String,
    /// Id of the elicitation; empty if the server gave none.
    #[serde(default, rename = "elicitationId")]
    pub id: String,
}

impl ElicitationLink {
    /// Builds the question by which a client is asked to open the page. `key` must be unique among the open questions of the call.
    /// `has_id`: true for clients of 2025-11-25, false for those of 2026-07-28, whose questions have no id of their own.
    pub fn question(&self, key: &str, has_id: bool) -> Question {
        let mut params = json!({ "mode": "url", "message": self.message, "url": self.url });
        if has_id && !self.id.is_empty() {
            params[ID] = self.id.as_str().into();
        }
        Question {
            key: key.into(),
            method: AskMethod::Elicit,
            params: params.to_string().into(),
        }
    }

    /// Returns true if the page is at an `http` or `https` URL of at most [`URL_MAX`] bytes, with a text of at most
    /// [`MESSAGE_MAX`] bytes. Other schemes could run code or open programs.
    fn is_usable(&self) -> bool {
        let scheme = self.url.split_once("://").map(|(scheme, _)| scheme);
        let is_page = scheme
            .is_some_and(|it| it.eq_ignore_ascii_case("https") || it.eq_ignore_ascii_case("http"));
        let is_plain = self.url.bytes().all(|byte| byte.is_ascii_graphic());
        is_page && is_plain && self.url.len() <= URL_MAX && self.message.len() <= MESSAGE_MAX
    }

    /// Returns the message and the URL as text, for clients that cannot be asked to open the page.
    pub fn text(&self) -> String {
        match self.message.trim() {
            "" => self.url.clone(),
            message => format!("{message} {}", self.url),
        }
    }
}

/// Returns true if the parameters of an elicitation (a JSON object) have the mode `url`; false for forms.
pub fn is_url(params: &[u8]) -> bool {
    let mode = std::str::from_utf8(params).ok();
    mode.and_then(|it| spans::find(it, "mode")) == Some("\"url\"")
}

/// Returns the page that a question asks the client to open; `None` for questions other than elicitations in URL mode.
pub fn of_question(question: &Question) -> Option<ElicitationLink> {
    if question.method != AskMethod::Elicit || !is_url(&question.params) {
        return None;
    }
    serde_json::from_slice(&question.params).ok()
}

/// Adds the id that legacy clients need to a question of a modern server, unless the question has an id already. Returns the id;
/// `None` for questions other than elicitations in URL mode.
pub fn identify(question: &mut Question, new_id: impl FnOnce() -> String) -> Option<String> {
    let link = of_question(question)?;
    if !link.id.is_empty() {
        return Some(link.id);
    }
    let (id, params) = (new_id(), std::str::from_utf8(&question.params).ok()?);
    let value = serde_json::Value::from(id.as_str()).to_string();
    question.params = spans::edited(params, &[MemberEdit::Set(ID, value.into())])?.into();
    Some(id)
}

/// Returns the pages that a server's error −32042 requires. `None` for other errors, and if the error names no page, more than
/// [`OPEN_QUESTIONS_MAX`] pages, or a page that is not usable.
pub fn required(error: &[u8]) -> Option<Vec<ElicitationLink>> {
    let error = spans::raw(error)?;
    let is_required = |code: &RawValue| code.get().parse() == Ok(code::URL_ELICITATION_REQUIRED);
    spans::member(error, "code").filter(|code| is_required(code))?;
    let listed = spans::member(spans::member(error, "data")?, "elicitations")?;
    let links: Vec<ElicitationLink> = serde_json::from_str(listed.get()).ok()?;
    let fits = !links.is_empty() && links.len() <= OPEN_QUESTIONS_MAX;
    (fits && links.iter().all(ElicitationLink::is_usable)).then_some(links)
}

/// Builds the notification that tells a legacy client that an elicitation in URL mode is completed.
pub fn completed(id: &str) -> Bytes {
    let message = json!({ "jsonrpc": "2.0", "method": COMPLETED, "params": { ID: id } });
    message.to_string().into()
}

/// Returns true if a client with these capabilities (a JSON object) can be asked to open a page: they contain `elicitation.url`.
/// False for all other clients.
pub fn can_open(capabilities: &str) -> bool {
    let elicitation = spans::find(capabilities, "elicitation");
    let url = elicitation.and_then(|it| spans::find(it, "url"));
    url.is_some_and(|it| it != "null")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elicitation(params: &'static str) -> Question {
        Question {
            key: "k".into(),
            method: AskMethod::Elicit,
            params: params.into(),
        }
    }

    #[test]
    fn a_legacy_client_gets_the_id_that_a_modern_server_left_out() {
        let mut question = elicitation(r#"{"mode":"url","url":"https://a","message":"m","x":1.0}"#);
        let id = identify(&mut question, || "new".into());
        assert_eq!(id.as_deref(), Some("new"));
        let expected =
            r#"{"mode":"url","url":"https://a","message":"m","x":1.0,"elicitationId":"new"}"#;
        assert_eq!(question.params, expected);
        let again = identify(&mut question, || unreachable!("it has an id"));
        assert_eq!(again.as_deref(), Some("new"));
        let mut form = elicitation(r#"{"message":"m","requestedSchema":{}}"#);
        assert_eq!(identify(&mut form, || unreachable!("a form")), None);
    }

    #[test]
    fn the_pages_of_the_error_are_read_and_other_errors_are_not() {
        let error = br#"{"code":-32042,"message":"m","data":{"elicitations":[
            {"mode":"url","elicitationId":"i","url":"https://a","message":"log in"}]}}"#;
        let links = required(error).expect("pages");
        let expected = ElicitationLink {
            url: "https://a".into(),
            message: "log in".into(),
            id: "i".into(),
        };
        assert_eq!(links, [expected]);
        assert_eq!(links[0].text(), "log in https://a");
        assert_eq!(
            of_question(&links[0].question("k", true)).as_ref(),
            Some(&links[0])
        );
        let without_id = links[0].question("k", false);
        assert_eq!(
            without_id.params,
            r#"{"message":"log in","mode":"url","url":"https://a"}"#
        );
        for other in [
            r#"{"code":-32042,"message":"m"}"#,
            r#"{"code":-32042,"message":"m","data":{"elicitations":[]}}"#,
            r#"{"code":-32042,"message":"m","data":{"elicitations":[{"mode":"url"}]}}"#,
            r#"{"code":-32603,"data":{"elicitations":[{"url":"https://a"}]}}"#,
            r#"{"code":-32042,"data":{"elicitations":[{"url":"javascript://a%0Aalert(1)"}]}}"#,
            r#"{"code":-32042,"data":{"elicitations":[{"url":"file:///etc/passwd"}]}}"#,
            r#"{"code":-32042,"data":{"elicitations":[{"url":"https://a b"}]}}"#,
        ] {
            assert_eq!(required(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn a_client_opens_pages_only_if_it_declares_so() {
        for (capabilities, expected) in [
            (r#"{"elicitation":{"form":{},"url":{}}}"#, true),
            (r#"{"elicitation":{"url":null}}"#, false),
            (r#"{"elicitation":{}}"#, false),
            (r#"{"url":{}}"#, false),
            ("{}", false),
        ] {
            assert_eq!(can_open(capabilities), expected, "{capabilities}");
        }
    }
}
