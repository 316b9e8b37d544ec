//! Documents that are generated from a list of tools, such as OpenAPI. A list never changes, so a document stays valid for as
//! long as its list exists.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::list::ToolList;
use super::view::{Fingerprint, View};

/// Maximum number of documents that are stored for one list. A new document then replaces the oldest.
const DOCUMENTS_MAX: usize = 3;
/// Maximum total size of all stored documents of the process, in bytes. Further documents are not stored.
const BYTES_MAX: usize = 32 * 1024 * 1024;

/// Current total size of all stored documents of the process, in bytes.
static BYTES: AtomicUsize = AtomicUsize::new(0);

/// The documents that are stored for one list of tools.
#[derive(Debug, Default)]
pub(super) struct Documents(Mutex<Vec<Document>>);

/// A stored document, with a digest of the settings that it was generated with, and a fingerprint of the tools that it contains.
#[derive(Debug)]
struct Document {
    form: [u8; 32],
    view: Fingerprint,
    text: KeptText,
}

/// The text of a document. It counts towards the total size until it is dropped.
#[derive(Debug)]
struct KeptText(Bytes);

impl KeptText {
    /// Adds the text to the total size. Returns `None` if that would exceed [`BYTES_MAX`].
    fn new(text: &Bytes) -> Option<Self> {
        let before = BYTES.fetch_add(text.len(), Ordering::Relaxed);
        // The value is created before the check: if it does not fit, dropping it subtracts its size again.
        let kept = Self(text.clone());
        (before + text.len() <= BYTES_MAX).then_some(kept)
    }
}

impl Drop for KeptText {
    fn drop(&mut self) {
        BYTES.fetch_sub(self.0.len(), Ordering::Relaxed);
    }
}

impl ToolList {
    /// The stored document for this view and for settings with the digest `form`; `None` if it must be generated.
    pub fn document(&self, form: &[u8; 32], view: View<'_>) -> Option<Bytes> {
        let view = view.fingerprint();
        let documents = self.documents.lock();
        let mut all = documents.iter();
        all.find(|it| it.form == *form && it.view == view)
            .map(|it| it.text.0.clone())
    }

    /// Stores a document that was generated for this view and these settings, if there is room.
    pub fn keep_document(&self, form: [u8; 32], view: View<'_>, text: &Bytes) {
        let view = view.fingerprint();
        let mut documents = self.documents.lock();
        documents.retain(|it| it.form != form || it.view != view);
        if documents.len() >= DOCUMENTS_MAX {
            documents.remove(0);
        }
        let text = KeptText::new(text);
        documents.extend(text.map(|text| Document { form, view, text }));
    }
}

impl Documents {
    fn lock(&self) -> MutexGuard<'_, Vec<Document>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{caller, caller_with_scopes, namespace};

    #[test]
    fn a_document_is_found_by_its_form_and_by_those_who_may_see_the_same() {
        let list = ToolList::of_page(r#"{"tools":[{"name":"a"}]}"#);
        let (namespace, all, reader) =
            (namespace("shared"), caller(), caller_with_scopes(&["read"]));
        let (all, reader) = (View::of(&all, &namespace), View::of(&reader, &namespace));
        let text = Bytes::from_static(b"{}");
        list.keep_document([1; 32], all, &text);
        assert_eq!(list.document(&[1; 32], all), Some(text.clone()));
        assert_eq!(list.document(&[2; 32], all), None);
        assert_eq!(list.document(&[1; 32], reader), None);
        for form in 2..10 {
            list.keep_document([form; 32], all, &text);
        }
        assert_eq!(list.document(&[1; 32], all), None);
        assert_eq!(list.documents.lock().len(), DOCUMENTS_MAX);
    }

    #[test]
    fn a_document_without_room_is_not_kept() {
        let list = ToolList::of_page(r#"{"tools":[]}"#);
        let (namespace, caller) = (namespace("shared"), caller());
        let view = View::of(&caller, &namespace);
        let large = Bytes::from(vec![b' '; BYTES_MAX + 1]);
        list.keep_document([1; 32], view, &large);
        assert_eq!(list.document(&[1; 32], view), None);
    }
}
