//! The backend of ranks that share one GPU, as threads of one process.
//!
//! The one idea: **streams wait only for work that is already enqueued**. All ranks use the GPU's one
//! context, so an address of one rank is valid for all. A call has two halves. First, a rank records an event
//! after the work that produces its operand, and offers address and event to the ranks that need the operand.
//! A receiving rank makes its stream wait for the event, enqueues its own copy or sum from the address, and
//! records an event after it. In the second half the owner learns of that event and makes its stream wait for
//! it, so that its later work cannot overwrite values still being read.
//!
//! * Every event is recorded before another rank learns of it. Streams therefore wait only for work enqueued
//!   earlier, no kernel waits for another, and the GPU always makes progress in whatever order it runs
//!   streams. Kernels that wait for kernels of another rank would hang, because nothing guarantees that the
//!   GPU runs both.
//! * The ranks' hosts wait for each other as over host memory. Offers are messages of a
//!   [`Link`](crate::link::Link), with its deadlines, failures and mismatches. A send returns when the
//!   receiver has enqueued its copy.
//! * An offer is open until its call ends ([`offers`]). A failing call withdraws its offers before it returns
//!   the error, and from then on no rank enqueues work on that memory. The owner's stream waits for work
//!   enqueued before, so memory outlives its readers in any case.
//! * Each rank sums its shard of all operands with one kernel, in the order of the tree. The bits equal those
//!   of host memory. Nothing is allocated.

mod backend;
mod calls;
mod connect;
mod engine;
pub(crate) mod offers;
#[cfg(test)]
mod tests;

pub(crate) use connect::connect;
