//! Nothing of a step's graph outlives the step, nor of a validation's. Who does, if something does, is found here.

use device::Device;
use memory::{Category, CategoryBytes};
use telemetry::step_trace::{LiveSet, Outlived, RunPart, StepTrace};

/// What a step's graph is made of.
const GRAPH: [Category; 3] = [Category::Activation, Category::ActivationGradient, Category::Input];

/// Looks after every part of a run at what lives of graphs.
#[derive(Clone, Debug, Default)]
pub(crate) struct GraphCheck {
    /// Bytes of graphs before the first step: what a model keeps for good.
    before: u64,
    /// The same now.
    now: u64,
    found: Option<Outlived>,
}

impl GraphCheck {
    /// Looks, after a part of the run; `trace` is what happened in it. True where something was found for the first time.
    pub(crate) fn check(
        &mut self,
        device: &Device,
        part: RunPart,
        step: u64,
        trace: impl FnOnce() -> StepTrace,
    ) -> bool {
        self.now = of_graph(&device.with_allocator(|allocator| allocator.category_bytes()));
        match (part, &mut self.found) {
            (RunPart::Start, _) => self.before = self.now,
            _ if self.now <= self.before => {}
            (_, Some(found)) => found.parts += 1,
            (_, None) => {
                let rank = device.rank();
                let mut kept = trace().kept().holdings;
                kept.retain(|holding| GRAPH.contains(&holding.owner.category));
                self.found = Some(Outlived { rank, part, step, kept: LiveSet { holdings: kept }, parts: 1 });
                return true;
            }
        }
        false
    }

    /// Bytes of graphs that lived after the part that was looked at last.
    pub(crate) fn left(&self) -> u64 {
        self.now
    }

    pub(crate) fn found(&self) -> Option<&Outlived> {
        self.found.as_ref()
    }
}

fn of_graph(bytes: &CategoryBytes) -> u64 {
    GRAPH.iter().map(|category| bytes.get(*category)).sum()
}
