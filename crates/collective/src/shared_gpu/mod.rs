//! The backend of ranks that share one GPU, as threads of one process.
//!
//! The one idea: **only streams wait, and only for work that has been enqueued before**. All ranks of a
//! process use the GPU's one context, so an address of one rank is valid for all. A call has two halves. In
//! the first, a rank records an event after the work that completes its operand, and offers its address with
//! the event to the ranks that need it. A rank that has an offer makes its stream wait for the event, copies
//! or sums from the address with work of its own, and records an event after that. In the second half the
//! owner learns of that event, and makes its own stream wait for it, so that what it does next cannot
//! overwrite values that are still read.
//!
//! * Every event is recorded before another rank hears of it. What a stream waits for has therefore been
//!   enqueued earlier, no kernel waits for another rank's, and the GPU always makes progress, in whatever
//!   order it runs streams. Kernels that wait for kernels of another rank would hang here, because nothing
//!   makes the GPU run both.
//! * The ranks' hosts wait for each other, as over host memory: offers are messages of a
//!   [`Link`](crate::link::Link), with its deadlines, failures and mismatches. A send returns when the
//!   receiver has enqueued its copy.
//! * An offer is open until its call ends ([`offers`]). A call that fails withdraws its offers before it
//!   returns the error, and from then on nobody enqueues work on that memory. Work that was enqueued has an
//!   event for which the owner's stream waits, so memory outlives its readers in any case.
//! * Sums are this crate's: each rank adds its shard of all operands, with one kernel, in the order of the
//!   tree. Bits equal those of ranks over host memory. Nothing is allocated.

mod backend;
mod calls;
mod connect;
mod engine;
pub(crate) mod offers;
#[cfg(test)]
mod tests;

pub(crate) use connect::connect;
