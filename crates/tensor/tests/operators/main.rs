//! Every operator against plain f64 code, by its public functions alone.
#![allow(missing_docs, clippy::expect_used, clippy::unwrap_used, clippy::print_stderr)]

mod arriving;
mod attention;
mod cross_entropy;
mod elementwise;
mod embedding;
mod errors;
mod layer_norm;
mod linear;
mod meta;
mod norm;
mod optimizers;
mod random;
mod reference;
mod repeat;
mod scenario;
mod support;
mod threads;
mod tree;
