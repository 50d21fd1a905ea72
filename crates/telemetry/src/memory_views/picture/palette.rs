//! Colours of the memory picture.

use memory::Category;

/// Returns the colour of a category, chosen to be distinct for most eyes on white and on black.
pub(super) fn colour(category: Category) -> &'static str {
    match category {
        Category::Parameter => "#4477aa",
        Category::Buffer => "#8866dd",
        Category::Gradient => "#ee8866",
        Category::OptimizerState => "#88ccee",
        Category::Activation => "#44aa99",
        Category::ActivationGradient => "#ddcc77",
        Category::Workspace => "#aa4499",
        Category::Communication => "#cc6677",
        Category::Input => "#999933",
        Category::Other => "#9a9a9a",
    }
}
