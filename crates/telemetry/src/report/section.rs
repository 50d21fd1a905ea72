//! A section of the page.

/// A section, with its link in the page's navigation.
pub(super) struct Section {
    /// Target of links to the section.
    pub(super) id: &'static str,
    pub(super) title: &'static str,
    /// Content, as HTML.
    pub(super) body: String,
}
