//! Checks that no tensor of a step's graph outlives the step.

use device::Device;
use memory::{Category, CategoryBytes};
use telemetry::step_trace::{Outlived, RunPart, StepTrace};

/// Memory categories of tensors in a step's graph.
const GRAPH: [Category; 3] = [Category::Activation, Category::ActivationGradient, Category::Input];

/// Counts the bytes of graph tensors that remain after each part of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct GraphCheck {
    /// Bytes before the first step, which the model keeps.
    before: u64,
    /// Bytes now.
    now: u64,
    /// Bytes after the first part that left some behind.
    first: u64,
    outlived: Option<Outlived>,
}

impl GraphCheck {
    /// Checks memory after a part of the run, with the events `trace`. Returns true the first time that bytes
    /// remain, and again when the next part shows whether they grow.
    pub(crate) fn check(
        &mut self,
        device: &Device,
        part: RunPart,
        step: u64,
        trace: impl FnOnce() -> StepTrace,
    ) -> bool {
        self.now = of_graph(&device.with_allocator(|allocator| allocator.category_bytes()));
        match (part, &mut self.outlived) {
            (RunPart::Start, _) => self.before = self.now,
            _ if self.now <= self.before => {}
            (_, Some(outlived)) => {
                outlived.parts += 1;
                outlived.last_step = step;
                outlived.growth_bytes = self.now.saturating_sub(self.first) / (outlived.parts - 1);
                return outlived.parts == 2;
            }
            (_, None) => {
                self.first = self.now;
                let rank = device.rank();
                let mut live = trace().outlived();
                live.holdings.retain(|holding| GRAPH.contains(&holding.owner.category));
                let outlived =
                    Outlived { rank, part, step, kept: live, parts: 1, last_step: step, growth_bytes: 0 };
                self.outlived = Some(outlived);
                return true;
            }
        }
        false
    }

    /// Returns the bytes of graph tensors that were alive after the last checked part.
    pub(crate) fn left(&self) -> u64 {
        self.now
    }

    pub(crate) fn outlived(&self) -> Option<&Outlived> {
        self.outlived.as_ref()
    }
}

fn of_graph(bytes: &CategoryBytes) -> u64 {
    GRAPH.iter().map(|category| bytes.get(*category)).sum()
}
