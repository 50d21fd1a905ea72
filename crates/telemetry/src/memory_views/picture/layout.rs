//! Vertical positions of segments in the drawing: addresses without the gaps between them. Later segments
//! reuse the positions of returned segments.

use crate::memory_views::lifetimes::{BlockLife, Lifetimes, SegmentLife};

/// Segments and blocks with the height of their lower edges, in bytes from the bottom.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) segments: Vec<(SegmentLife, u64)>,
    pub(super) blocks: Vec<(BlockLife, u64)>,
    /// Height of the whole drawing, in bytes.
    pub(super) height: u64,
}

/// A range of addresses that is laid out as a whole: one segment, or all parts of an expandable segment.
#[derive(Clone, Copy, Debug)]
struct Region {
    address: u64,
    size: u64,
    begin: usize,
    end: usize,
    mapped: bool,
    bottom: u64,
}

impl Region {
    fn top(&self) -> u64 {
        self.bottom + self.size
    }
}

/// Lays out all segments; segments that live at the same time never overlap.
pub(super) fn lay_out(lives: &Lifetimes) -> Layout {
    let mut regions = regions(&lives.segments);
    regions.sort_unstable_by_key(|r| (r.begin, r.address));
    let mut areas: Vec<Region> = Vec::with_capacity(regions.len());
    // Visited in order of their starts, so only segments still alive can overlap.
    let mut alive: Vec<Region> = Vec::new();
    for mut region in regions {
        alive.retain(|other| region.begin < other.end);
        let mut beside: Vec<(u64, u64)> = alive.iter().map(|other| (other.bottom, other.top())).collect();
        beside.sort_unstable();
        let mut bottom = 0;
        for (from, to) in beside {
            if bottom + region.size <= from {
                break;
            }
            bottom = bottom.max(to);
        }
        region.bottom = bottom;
        alive.push(region);
        areas.push(region);
    }
    let height = areas.iter().map(Region::top).max().unwrap_or(0);
    areas.sort_unstable_by_key(|r| r.address);
    // Segments of different times may have the same addresses, so the lifetime must match too.
    let bottom_of = |address: u64, begin: usize| {
        let behind = areas.partition_point(|r| r.address <= address);
        areas[..behind]
            .iter()
            .rev()
            .find(|r| address < r.address + r.size && r.begin <= begin && begin <= r.end)
            .map(|r| r.bottom + (address - r.address))
    };
    Layout {
        segments: lives.segments.iter().filter_map(|s| Some((*s, bottom_of(s.address, s.begin)?))).collect(),
        blocks: lives.blocks.iter().filter_map(|b| Some((*b, bottom_of(b.address, b.begin)?))).collect(),
        height,
    }
}

/// Joins the parts of each expandable segment; every other segment is its own region.
fn regions(segments: &[SegmentLife]) -> Vec<Region> {
    let mut sorted: Vec<&SegmentLife> = segments.iter().collect();
    sorted.sort_unstable_by_key(|s| (s.mapped, s.address));
    let mut regions: Vec<Region> = Vec::new();
    for s in sorted {
        if let Some(last) =
            regions.last_mut().filter(|r| r.mapped && s.mapped && s.address <= r.address + r.size)
        {
            last.size = last.size.max(s.address + s.size - last.address);
            last.begin = last.begin.min(s.begin);
            last.end = last.end.max(s.end);
        } else {
            regions.push(Region {
                address: s.address,
                size: s.size,
                begin: s.begin,
                end: s.end,
                mapped: s.mapped,
                bottom: 0,
            });
        }
    }
    regions
}
