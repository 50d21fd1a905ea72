//! Pipeline schedules: valid, with the papers' times and loads, drawn like the papers' figures,
//! and executed.

mod execution;
mod figures;
mod partition;
mod refused;
mod shapes;
mod sound;
mod timing;
