//! trainer

pub mod config;
