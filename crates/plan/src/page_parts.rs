//! Parts shared by the pages of plans and of runs.

use collective::{Axis, GridShape};
use config::RunConfig;
use telemetry::report::{RankMemory, Tile};
use telemetry::units::{bytes, grouped};

/// Describes the model, the grid and the device in one line.
pub fn subtitle(config: &RunConfig, device: Option<&str>) -> String {
    let model = config.model.summary();
    let ranks = ranks_in_words(config.parallel.grid());
    let compute = config.precision.compute.name();
    let parts = [Some(model), Some(compute.to_owned()), Some(ranks), device.map(str::to_owned)];
    parts.into_iter().flatten().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" · ")
}

/// Describes the number of ranks, and the axes with several ranks.
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

/// Returns tiles with the memory figures of the rank with the most.
pub fn memory_tiles(ranks: &[RankMemory]) -> Vec<Tile> {
    let suffix = if ranks.len() > 1 { ", the most of any rank" } else { "" };
    let most = |figure: usize| ranks.iter().map(|rank| rank.figures[figure]).max();
    let tile = |name, figure| {
        most(figure).map(|most| Tile {
            name,
            value: bytes(most),
            note: format!("{} bytes{suffix}", grouped(most)),
        })
    };
    [tile("Peak reserved", 3), tile("Peak allocated", 2)].into_iter().flatten().collect()
}
