//! Macros that declare kernel families.

/// Expands to the text of a file of `kernels/`.
macro_rules! kernel_file {
    ($($name:expr),+) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../kernels/", $($name),+))
    };
}

/// Declares the [`Family`](device::Family) of `kernels/<name>.cu`. Optional: headers besides `common.cuh`,
/// constants that the host needs too, and variants.
macro_rules! family {
    (
        $name:literal
        $(, headers: [$($header:literal),+])?
        $(, constants: $constants:expr)?
        $(, variants: $variants:expr)?
        $(,)?
    ) => {
        device::Family {
            name: $name,
            source: $crate::ops::kernels::kernel_file!($name, ".cu"),
            headers: &[
                ("common.cuh", $crate::ops::kernels::kernel_file!("common.cuh")),
                $($(($header, $crate::ops::kernels::kernel_file!($header)),)+)?
            ],
            constants: $crate::ops::kernels::or_empty!($($constants)?, &[]),
            variants: $crate::ops::kernels::or_empty!($($variants)?, &[&[]]),
        }
    };
}

/// Expands to the first expression, or to the second if the first is absent.
macro_rules! or_empty {
    (, $default:expr) => {
        $default
    };
    ($value:expr, $default:expr) => {
        $value
    };
}

pub(crate) use {family, kernel_file, or_empty};
