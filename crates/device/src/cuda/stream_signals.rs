//! Signals of a GPU's streams ([`signals`](super::signals)).

use std::fs::File;

use super::signals::{self, SignalPage, Word};
use crate::device::{Device, OnDevice};
use crate::stream::StreamKind;

impl Device {
    /// Maps a page of signals for this GPU, from a file of [`SignalPage::BYTES`] zeros.
    ///
    /// # Errors
    /// A device that is not a GPU, a driver without memory operations on streams, the driver's.
    pub fn signal_page(&self, file: &File) -> crate::Result<SignalPage> {
        let cuda = self.gpu_or_refuse("cuMemHostRegister")?;
        SignalPage::of_file(file, &cuda.context).on(self)
    }

    /// Enqueues `writes` on the stream, after all earlier work, then waits until each word of `waits` has
    /// reached its value. A word that is up to 2^31 past the value, modulo 2^32, has reached it.
    pub fn signal(
        &self,
        writes: &[(Word, u32)],
        waits: &[(Word, u32)],
        stream: StreamKind,
    ) -> crate::Result<()> {
        let cuda = self.gpu_or_refuse("cuStreamBatchMemOp")?;
        let enqueued = signals::enqueue(cuda.streams.handle(stream), writes, waits);
        enqueued.on(self)
    }
}
