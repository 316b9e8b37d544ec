//! Cache of serialized lists of tools. A list never changes, so the text that is written for one request is reused for all
//! requests whose callers may see the same tools. Only the id of the response differs.

use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tooldock_protocol::format::ResultFormat;

use super::list::ToolList;
use super::view::{Fingerprint, View};

/// Maximum size of a serialized list that is cached, in bytes. A longer one is written again for each request.
const KEPT_MAX: usize = 256 * 1024;
/// Maximum number of cached texts of one list; a new text then replaces the oldest. For each view there can be four: legacy
/// without output schemas, legacy with them, legacy with tasks, and modern.
const FORMS_MAX: usize = 12;

/// The cached texts of one list.
#[derive(Debug, Default)]
pub(super) struct WrittenLists(Mutex<Vec<(Form, Bytes)>>);

/// Key of a cached text: the format of the client's era, and the fingerprint of the view.
type Form = (Spelling, Fingerprint);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Spelling {
    Legacy { output_schemas: bool, tasks: bool },
    Modern,
}

impl ToolList {
    /// The cached result of `tools/list` in this format for this view; `None` if it has not been written yet.
    pub fn written(&self, format: &ResultFormat, view: View<'_>) -> Option<Bytes> {
        let form = form(format, view);
        let written = self.written.lock();
        let mut all = written.iter();
        all.find(|(own, _)| *own == form)
            .map(|(_, result)| result.clone())
    }

    /// Caches the result of `tools/list` that was written in this format for this view.
    pub fn keep_written(&self, format: &ResultFormat, view: View<'_>, result: &[u8]) {
        if result.len() > KEPT_MAX {
            return;
        }
        let form = form(format, view);
        let mut written = self.written.lock();
        // A concurrent request may have cached the same text; it is replaced.
        written.retain(|(own, _)| *own != form);
        if written.len() >= FORMS_MAX {
            written.remove(0);
        }
        written.push((form, Bytes::copy_from_slice(result)));
    }
}

impl WrittenLists {
    fn lock(&self) -> MutexGuard<'_, Vec<(Form, Bytes)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn form(format: &ResultFormat, view: View<'_>) -> Form {
    let spelling = match format {
        ResultFormat::Legacy(_) => Spelling::Legacy {
            output_schemas: format.has_structured_content(),
            tasks: format.has_tasks(),
        },
        ResultFormat::Modern(_) => Spelling::Modern,
    };
    (spelling, view.fingerprint())
}
