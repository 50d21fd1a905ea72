//! Accuracy in words.

/// Returns shares of images, from 0 to 1, as top-1 and top-5 accuracy.
pub(crate) fn percentages([first, among]: [f64; 2]) -> String {
    format!("top-1 {:.2} %, top-5 {:.2} %", 100.0 * first, 100.0 * among)
}
