//! Element types of buffers, and the host types that represent them.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::fp8::{E4m3, E5m2};
use crate::parallel::simd;

/// Declares [`DType`] from rows of variant, name and host type.
macro_rules! dtypes {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $host:ty;)*) => {
        /// Element type of a buffer.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum DType {
            $($(#[$doc])* $variant,)*
        }

        impl DType {
            /// All element types.
            pub const ALL: &[DType] = &[$(DType::$variant),*];

            /// Returns the bytes of one element.
            pub const fn bytes(self) -> usize {
                match self {
                    $(DType::$variant => size_of::<$host>(),)*
                }
            }

            /// Returns the name used in configuration, messages, files and kernel names.
            pub const fn name(self) -> &'static str {
                match self {
                    $(DType::$variant => $name,)*
                }
            }
        }

        $(impl Element for $host {
            const DTYPE: DType = DType::$variant;
        })*
    };
}

dtypes! {
    /// IEEE single precision.
    F32 = "f32", f32;
    /// bfloat16: f32 with a 7-bit mantissa.
    Bf16 = "bf16", bf16;
    /// IEEE half precision.
    F16 = "f16", f16;
    /// Token identifiers and class targets.
    U32 = "u32", u32;
    /// 8-bit floating-point with a 3-bit mantissa, for operands of matmuls.
    E4m3 = "e4m3", E4m3;
    /// 8-bit floating-point with a 2-bit mantissa, for gradients as operands of matmuls.
    E5m2 = "e5m2", E5m2;
    /// Bytes: pixel values, codes of optimizer states.
    U8 = "u8", u8;
}

/// Evaluates an expression with `$T` bound to the host type, a [`Float`](crate::Float), of a
/// [`DType`](crate::DType) known at run time. Other types take the last arm.
///
/// ```
/// use device::{DType, Float, dispatch};
/// let sum = |dtype| dispatch!(dtype, T => Some(T::from_f32(1.0).to_f32() + 1.0), _ => None);
/// assert_eq!(sum(DType::Bf16), Some(2.0));
/// assert_eq!(sum(DType::U32), None);
/// ```
#[macro_export]
macro_rules! dispatch {
    ($dtype:expr, $T:ident => $body:expr, _ => $other:expr $(,)?) => {
        match $dtype {
            $crate::DType::F32 => {
                type $T = f32;
                $body
            }
            $crate::DType::Bf16 => {
                type $T = $crate::bf16;
                $body
            }
            $crate::DType::F16 => {
                type $T = $crate::f16;
                $body
            }
            $crate::DType::U32 | $crate::DType::E4m3 | $crate::DType::E5m2 | $crate::DType::U8 => $other,
        }
    };
}

impl DType {
    /// Returns whether the type is an 8-bit floating-point format, which only matmuls read.
    pub const fn is_fp8(self) -> bool {
        matches!(self, DType::E4m3 | DType::E5m2)
    }

    /// Returns whether [`dispatch!`](crate::dispatch) has a host type for this type.
    pub const fn is_float(self) -> bool {
        dispatch!(self, _T => true, _ => false)
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// A host type that represents a [`DType`]. Every bit pattern must be a valid value.
pub trait Element: bytemuck::Pod + Send + Sync {
    /// The element type that the host type represents.
    const DTYPE: DType;
}

/// A floating-point element. Computations are in f32 and rounded to the nearest value, ties to even.
pub trait Float: Element + Into<f32> + Into<f64> {
    /// Returns the value in f32.
    fn to_f32(self) -> f32;

    /// Rounds `value` to the nearest value of this type, ties to even.
    fn from_f32(value: f32) -> Self;

    /// Rounds `values` into `rounded`, a slice of the same length.
    fn round(values: &[f32], rounded: &mut [Self]);

    /// Converts `values` to `wide`, a slice of the same length.
    fn widen(values: &[Self], wide: &mut [f32]);
}

impl Float for f32 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }

    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        value
    }

    fn round(values: &[f32], rounded: &mut [Self]) {
        rounded.copy_from_slice(values);
    }

    fn widen(values: &[f32], wide: &mut [f32]) {
        wide.copy_from_slice(values);
    }
}

macro_rules! half_float {
    ($($host:ty, $round:expr, $widen:expr;)*) => {
        $(impl Float for $host {
            #[inline(always)]
            fn to_f32(self) -> f32 {
                <$host>::to_f32(self)
            }

            #[inline(always)]
            fn from_f32(value: f32) -> Self {
                <$host>::from_f32(value)
            }

            fn round(values: &[f32], rounded: &mut [Self]) {
                $round(values, rounded);
            }

            fn widen(values: &[Self], wide: &mut [f32]) {
                $widen(values, wide);
            }
        })*
    };
}

half_float! {
    bf16, each_rounded, each_widened;
    f16, |values, rounded: &mut [f16]| rounded.convert_from_f32_slice(values),
        |values: &[f16], wide| values.convert_to_f32_slice(wide);
}

// `half` converts bf16 one by one.

fn each_rounded(values: &[f32], rounded: &mut [bf16]) {
    simd(
        #[inline(always)]
        || rounded.iter_mut().zip(values).for_each(|(rounded, value)| *rounded = bf16::from_f32(*value)),
    );
}

fn each_widened(values: &[bf16], wide: &mut [f32]) {
    simd(
        #[inline(always)]
        || wide.iter_mut().zip(values).for_each(|(wide, value)| *wide = value.to_f32()),
    );
}
