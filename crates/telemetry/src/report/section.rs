//! A section of the page.

/// A section of the page, with a link in the navigation.
pub(super) struct Section {
    /// The HTML id, target of links to the section.
    pub(super) id: &'static str,
    pub(super) title: &'static str,
    /// Content, as HTML.
    pub(super) body: String,
}
