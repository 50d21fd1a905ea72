//! Formats validation accuracy for logs.

use worker::PreferenceFigures;

/// Formats shares of correctly classified images, from 0 to 1, as top-1 and top-5 percentages.
pub(crate) fn percentages([first, among]: [f64; 2]) -> String {
    format!("top-1 {:.2} %, top-5 {:.2} %", 100.0 * first, 100.0 * among)
}

/// Formats the reward accuracy and margin of preference training, to be appended to the loss.
pub(crate) fn rewards(figures: &PreferenceFigures) -> String {
    let PreferenceFigures { accuracy, margin, .. } = figures;
    format!(", reward accuracy {:.2} %, margin {margin:.4}", 100.0 * accuracy)
}
