//! A section of the page.

/// A section, with a link in the page's navigation.
pub(super) struct Section {
    /// Target of links.
    pub(super) id: &'static str,
    /// Heading.
    pub(super) title: &'static str,
    /// Content, as HTML.
    pub(super) body: String,
}
