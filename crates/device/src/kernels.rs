//! Kernel families and functions that a GPU compiles and launches. Operators declare the kernels that they
//! own.

use std::fmt;

use crate::DType;

/// A CUDA source that is compiled to one module per variant. Families are identified by their address.
#[derive(Debug)]
pub struct Family {
    /// Name of the operator and of the file `kernels/<name>.cu`.
    pub name: &'static str,
    /// Text of the file.
    pub source: &'static str,
    /// Names and texts of the files that the source includes.
    pub headers: &'static [(&'static str, &'static str)],
    /// Macros defined in every variant: numbers that the host uses as well.
    pub constants: &'static [(&'static str, u32)],
    /// Additional macros of each variant. Most families have one variant without macros.
    pub variants: &'static [&'static [(&'static str, u32)]],
}

/// A kernel of a family, with the element types that it is instantiated for.
#[derive(Clone, Copy, Debug)]
pub struct Function {
    family: &'static Family,
    variant: usize,
    name: &'static str,
    dtypes: [Option<DType>; 2],
}

impl Function {
    /// Returns the kernel `name` of a family's first variant, without element types.
    pub const fn new(family: &'static Family, name: &'static str) -> Self {
        Function { family, variant: 0, name, dtypes: [None; 2] }
    }

    /// Returns the kernel in another variant of its family.
    pub const fn variant(self, index: usize) -> Self {
        Function { variant: index, ..self }
    }

    /// Returns the kernel's instance for elements of `dtype`.
    pub const fn with_dtype(self, dtype: DType) -> Self {
        Function { dtypes: [Some(dtype), None], ..self }
    }

    /// Returns the kernel's instance that reads elements of `read` and writes elements of `written`.
    pub const fn from_to(self, read: DType, written: DType) -> Self {
        Function { dtypes: [Some(read), Some(written)], ..self }
    }

    /// Returns the kernel's family.
    pub fn family(&self) -> &'static Family {
        self.family
    }

    /// Returns the index of the kernel's variant in its family.
    pub fn variant_index(&self) -> usize {
        self.variant
    }

    /// Returns whether the kernel's variant is compiled with the macro `name`.
    pub fn is_with(&self, name: &str) -> bool {
        let variant = self.family.variants.get(self.variant).copied().unwrap_or_default();
        variant.iter().any(|(own, _)| *own == name)
    }

    /// Returns the name of the kernel in the compiled module: its own name, then the name of each element
    /// type.
    pub fn symbol(&self) -> String {
        let dtypes = self.dtypes.iter().flatten();
        dtypes.fold(self.name.to_owned(), |symbol, dtype| format!("{symbol}_{dtype}"))
    }

    pub(crate) fn key(&self) -> Key {
        (std::ptr::from_ref(self.family), self.variant, self.name, self.dtypes)
    }
}

/// Two words of a kernel's arguments that depend on the micro-batch's number: the key of its random numbers.
/// A replayed launch gets the words of later micro-batches.
#[derive(Clone, Copy, Debug)]
pub struct NumberedWords {
    /// Number of the micro-batch.
    pub number: u64,
    /// First argument of `function`.
    pub key: [u32; 2],
    /// Computes the words from `key` and a micro-batch's number.
    pub function: fn([u32; 2], u64) -> [u32; 2],
}

impl NumberedWords {
    /// Returns the words of micro-batch `number`.
    #[must_use]
    pub fn compute(&self, number: u64) -> [u32; 2] {
        (self.function)(self.key, number)
    }
}

/// Family by address, variant, name, element types.
pub(crate) type Key = (*const Family, usize, &'static str, [Option<DType>; 2]);

impl fmt::Display for Function {
    /// Prints the kernel and its element types, for messages.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.family.name, self.name)?;
        let mut words = [" for ", " and "].into_iter();
        self.dtypes
            .iter()
            .flatten()
            .try_for_each(|dtype| write!(f, "{}{dtype}", words.next().unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static FAMILY: Family =
        Family { name: "cast", source: "", headers: &[], constants: &[], variants: &[&[], &[]] };

    #[test]
    fn symbols_and_messages_name_the_element_types() {
        let kernel = Function::new(&FAMILY, "cast");
        let table = [
            (kernel, "cast", "cast.cast"),
            (kernel.with_dtype(DType::F16), "cast_f16", "cast.cast for f16"),
            (kernel.from_to(DType::F32, DType::Bf16), "cast_f32_bf16", "cast.cast for f32 and bf16"),
            (kernel.variant(1).with_dtype(DType::F32), "cast_f32", "cast.cast for f32"),
        ];
        for (function, symbol, message) in table {
            assert_eq!(function.symbol(), symbol);
            assert_eq!(function.to_string(), message);
        }
    }

    #[test]
    fn no_two_functions_share_a_key() {
        let kernel = Function::new(&FAMILY, "cast");
        let mut keys: Vec<_> = DType::ALL.iter().map(|dtype| kernel.with_dtype(*dtype).key()).collect();
        keys.extend(DType::ALL.iter().map(|dtype| kernel.from_to(DType::F32, *dtype).key()));
        keys.extend([kernel.key(), kernel.variant(1).key()]);
        for (index, key) in keys.iter().enumerate() {
            assert!(!keys[..index].contains(key), "{key:?}");
        }
    }
}
