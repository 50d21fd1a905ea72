//! A heat map of the loads of experts.

use std::fmt::Write;

use super::section::Section;
use crate::expert_loads::ExpertLoads;

/// Height of a layer's row, in pixels.
const ROW: usize = 18;
/// Width of the map in pixels, without the layer numbers.
const WIDTH: usize = 880;
/// Width of the layer numbers, in pixels.
const MARGIN: usize = 40;
/// Multiple of the mean load at which the colour scale ends.
const MOST: f64 = 3.0;

/// Draws the loads of one step: a row for each layer, a cell for each expert.
pub(super) fn section(step: u64, loads: &[ExpertLoads]) -> Option<Section> {
    let most = loads.iter().map(ExpertLoads::imbalance).reduce(f64::max)?;
    let height = ROW * loads.len();
    let mut map = format!(
        "<svg viewBox=\"0 0 {} {height}\" role=\"img\" aria-label=\"Loads of experts by layer\">\n",
        MARGIN + WIDTH
    );
    for (row, layer) in loads.iter().enumerate() {
        let y = row * ROW;
        let count = layer.tokens.len().max(1);
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(
            map,
            "<text x=\"0\" y=\"{}\" font-size=\"11\" fill=\"currentColor\">{}</text>",
            y + ROW - 5,
            layer.layer
        );
        for (expert, tokens) in layer.tokens.iter().enumerate() {
            let (x, of_mean) =
                (MARGIN as f64 + (expert * WIDTH) as f64 / count as f64, layer.of_mean(*tokens));
            let opacity = 0.06 + 0.94 * (of_mean / MOST).min(1.0);
            let width = (WIDTH as f64 / count as f64 - 1.0).max(0.5);
            let _ = writeln!(
                map,
                "<rect x=\"{x:.2}\" y=\"{y}\" width=\"{width:.2}\" height=\"{}\" fill=\"var(--accent)\" \
                 fill-opacity=\"{opacity:.3}\"><title>layer {}, expert {expert}: {tokens} tokens, {of_mean:.2} × \
                 the mean</title></rect>",
                ROW - 2,
                layer.layer
            );
        }
    }
    map += "</svg>\n";
    let body = format!(
        "<p class=\"soft\">Tokens that each expert computed in step {step}: a row for each layer, a cell for each \
         expert, darkest from {MOST} × the mean of the layer on. The largest load is {most:.2} × its mean.</p>\n\
         <figure class=\"scroll\">{map}</figure>\n"
    );
    Some(Section { id: "experts", title: "Experts", body })
}
