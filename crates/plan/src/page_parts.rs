//! Parts shared by the page of a plan and the page of a run.

use collective::{Axis, GridShape};
use config::RunConfig;
use telemetry::report::{RankMemory, Tile};
use telemetry::units::{bytes, grouped};

/// The model, the grid and the device in one line.
pub fn subtitle(config: &RunConfig, device: Option<&str>) -> String {
    let model = config.model.summary();
    let ranks = ranks_in_words(config.parallel.grid());
    let compute = config.precision.compute.name();
    let parts = [Some(model), Some(compute.to_owned()), Some(ranks), device.map(str::to_owned)];
    parts.into_iter().flatten().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" · ")
}

/// The number of ranks, and the axes along which there are several.
fn ranks_in_words(grid: GridShape) -> String {
    let axes: Vec<_> = grid.axes().filter(|(_, size)| *size > 1).collect();
    match axes[..] {
        [] => "1 rank".to_owned(),
        [(Axis::Data, size)] => format!("{size} ranks"),
        [(axis, size)] => format!("{size} ranks in a {}", axis.name()),
        _ => {
            let (names, sizes): (Vec<_>, Vec<_>) =
                axes.iter().map(|(axis, size)| (axis.name(), size.to_string())).unzip();
            format!("{} ranks ({})", sizes.join(" × "), names.join(" × "))
        }
    }
}

/// Tiles with the peaks of the rank that needs most.
pub fn memory_tiles(ranks: &[RankMemory]) -> Vec<Tile> {
    let of = if ranks.len() > 1 { ", the most of any rank" } else { "" };
    let most = |figure: usize| ranks.iter().map(|rank| rank.figures[figure]).max();
    let tile = |name, figure| {
        most(figure).map(|most| Tile {
            name,
            value: bytes(most),
            note: format!("{} bytes{of}", grouped(most)),
        })
    };
    [tile("Peak reserved", 3), tile("Peak allocated", 2)].into_iter().flatten().collect()
}
