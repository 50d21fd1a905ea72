//! The losses of validation micro-batches, gathered from the ranks that computed them.

use parallel::{Axis, Planes};

use crate::error::Result;

/// Returns the losses of all `count` validation micro-batches in order, on every rank. `own` are those of
/// this rank's micro-batches, if it has the model's last stage.
pub(crate) fn of_all(planes: &mut Planes, own: &[f32], count: u64) -> Result<Vec<f32>> {
    let bytes: Vec<u8> = own.iter().flat_map(|loss| loss.to_le_bytes()).collect();
    let all = planes.control().all_gather(&bytes)?;
    let grid = *planes.grid();
    let of = |index: u64| -> Option<f32> {
        let (replica, place) = grid.validated_by(index as usize);
        let last = (Axis::Pipeline, grid.size(Axis::Pipeline) - 1);
        let rank = grid.rank_at(&[(Axis::Data, replica), last]);
        let bytes = all.get(rank)?.get(4 * place..4 * place + 4)?;
        Some(f32::from_le_bytes(bytes.try_into().ok()?))
    };
    Ok((0..count).filter_map(of).collect())
}
