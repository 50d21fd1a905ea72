//! Images and their classes.

pub(crate) mod pattern;
