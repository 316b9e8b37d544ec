//! Reads the file of an upload request. The body is JSON with name and content, or a multipart form with the field `file`, as
//! browsers send it.

use futures_util::stream;
use multer::{Constraints, Multipart, SizeLimit};
use serde::Deserialize;
use tooldock_workers::manage::TOOL_FILE_BYTES_MAX;

use super::answer::WebFailure;
use super::request::ApiRequest;

/// An uploaded file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Upload {
    pub(super) filename: String,
    pub(super) content: String,
}

/// Reads the uploaded file of a request.
pub(super) async fn read(request: &ApiRequest) -> Result<Upload, WebFailure> {
    let Ok(boundary) = multer::parse_boundary(&request.content_type) else {
        return request.json();
    };
    let body = stream::iter([Ok::<_, std::convert::Infallible>(request.body.clone())]);
    // Reads at most one byte more than allowed, so that a file that is too large is recognized by its size.
    let limit = TOOL_FILE_BYTES_MAX as u64 + 1;
    let limits = SizeLimit::new().per_field(limit);
    let constraints = Constraints::new().size_limit(limits);
    let mut form = Multipart::with_constraints(body, boundary, constraints);
    let broken = |error: multer::Error| {
        WebFailure::invalid("body", format!("The form cannot be read: {error}"))
    };
    while let Some(field) = form.next_field().await.map_err(broken)? {
        if field.name() != Some("file") {
            continue;
        }
        let filename = field.file_name().unwrap_or_default().to_owned();
        let bytes = field.bytes().await.map_err(broken)?;
        let content = String::from_utf8(bytes.to_vec())
            .map_err(|_| WebFailure::invalid("file", format!("{filename:?} is not UTF-8 text")))?;
        return Ok(Upload { filename, content });
    }
    Err(WebFailure::invalid("file", "The form has no field `file`"))
}
