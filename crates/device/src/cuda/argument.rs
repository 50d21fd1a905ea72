//! Arguments of kernels.

use std::ffi::c_void;

#[derive(Clone, Debug)]
pub(super) enum Argument {
    Word(u32),
    Double(u64),
    /// A structure of 64-bit words.
    Doubles(Vec<u64>),
}

impl Argument {
    pub(super) fn bytes(&self) -> usize {
        match self {
            Argument::Word(_) => 4,
            Argument::Double(_) => 8,
            Argument::Doubles(values) => size_of_val(&**values),
        }
    }

    pub(super) fn pointer(&mut self) -> *mut c_void {
        match self {
            Argument::Word(value) => std::ptr::from_mut(value).cast(),
            Argument::Double(value) => std::ptr::from_mut(value).cast(),
            Argument::Doubles(values) => values.as_mut_ptr().cast(),
        }
    }
}
