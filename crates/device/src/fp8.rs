//! The two 8-bit floating-point formats of the Open Compute Project (*OCP 8-bit Floating Point
//! Specification*, 2023), as GPUs convert to them: rounded to nearest, ties to even, and saturated.

use bytemuck::{Pod, Zeroable};

struct Format {
    mantissa: u32,
    /// Exponent of the smallest normal value.
    smallest: i32,
    /// Code of the largest finite value.
    largest: u8,
}

const E4M3: Format = Format { mantissa: 3, smallest: -6, largest: 0x7e };
const E5M2: Format = Format { mantissa: 2, smallest: -14, largest: 0x7b };
/// The code of every NaN.
const NAN: u8 = 0x7f;

impl Format {
    #[inline(always)]
    fn encode(&self, value: f32) -> u8 {
        if value.is_nan() {
            return NAN;
        }
        let sign = u8::from(value.is_sign_negative()) << 7;
        let magnitude = value.abs();
        let exponent = ((magnitude.to_bits() >> 23) as i32 - 127).max(self.smallest);
        // Units in the last digit at this exponent; the implicit bit makes the exponent's field 1 by itself.
        let units = magnitude / power(exponent - self.mantissa as i32);
        let units = units.round_ties_even() as u32;
        let code = units.saturating_add(((exponent - self.smallest) as u32) << self.mantissa);
        sign | code.min(u32::from(self.largest)) as u8
    }

    const fn decode(&self, code: u8) -> f32 {
        let field = (code & 0x7f) >> self.mantissa;
        let units = code & ((1 << self.mantissa) - 1);
        let sign = if code & 0x80 != 0 { -1.0 } else { 1.0 };
        if code & 0x7f > self.largest {
            // E5M2 alone has infinities: the code after its largest value.
            let is_infinite = self.mantissa == 2 && units == 0;
            return if is_infinite { sign * f32::INFINITY } else { f32::NAN };
        }
        let (units, exponent) = match field {
            0 => (units, self.smallest),
            _ => (units | 1 << self.mantissa, self.smallest + field as i32 - 1),
        };
        sign * units as f32 * power(exponent - self.mantissa as i32)
    }

    const fn table(&self) -> [f32; 256] {
        let mut values = [0.0; 256];
        let mut code = 0;
        while code < 256 {
            values[code] = self.decode(code as u8);
            code += 1;
        }
        values
    }
}

/// Returns 2 to the power of a normal exponent.
#[inline(always)]
const fn power(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127) as u32) << 23)
}

/// An 8-bit floating-point format on the host.
pub trait Fp8: Pod + Send + Sync {
    /// The largest finite value.
    const LARGEST: f32;

    /// Returns the value nearest to `value`, ties to even. Numbers beyond the largest value saturate; NaN
    /// stays NaN.
    fn from_f32(value: f32) -> Self;

    /// Returns the value in f32, which is exact.
    fn to_f32(self) -> f32;

    /// Returns the value of a code.
    fn from_bits(code: u8) -> Self;

    /// Returns the value's code.
    fn to_bits(self) -> u8;
}

macro_rules! formats {
    ($($(#[$doc:meta])* $name:ident = $format:ident, $largest:literal;)*) => {
        $($(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
        #[repr(transparent)]
        pub struct $name(u8);

        impl Fp8 for $name {
            const LARGEST: f32 = $largest;

            #[inline(always)]
            fn from_f32(value: f32) -> Self {
                Self($format.encode(value))
            }

            #[inline(always)]
            fn to_f32(self) -> f32 {
                static VALUES: [f32; 256] = $format.table();
                VALUES[usize::from(self.0)]
            }

            #[inline(always)]
            fn from_bits(code: u8) -> Self {
                Self(code)
            }

            #[inline(always)]
            fn to_bits(self) -> u8 {
                self.0
            }
        })*
    };
}

formats! {
    /// 4 exponent bits and 3 mantissa bits, no infinities; largest value 448.
    E4m3 = E4M3, 448.0;
    /// 5 exponent bits and 2 mantissa bits; largest value 57,344.
    E5m2 = E5M2, 57_344.0;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round<T: Fp8>(value: f32) -> f32 {
        T::from_f32(value).to_f32()
    }

    #[test]
    fn values_are_rounded_to_nearest_and_saturated() {
        let table: [(f32, f32, f32); 14] = [
            (0.0, 0.0, 0.0),
            (1.0, 1.0, 1.0),
            (-1.0625, -1.0, -1.0),
            (1.1875, 1.25, 1.25),
            (1.125, 1.125, 1.0),
            (17.0, 16.0, 16.0),
            (448.0, 448.0, 448.0),
            (463.9, 448.0, 448.0),
            (-1e9, -448.0, -57_344.0),
            (f32::INFINITY, 448.0, 57_344.0),
            (0.001_953_125, 0.001_953_125, 0.001_953_125),
            (0.000_976_562_5, 0.0, 0.000_976_562_5),
            (1.6e-5, 0.0, 1.525_878_9e-5),
            (1e-40, 0.0, 0.0),
        ];
        for (value, four, five) in table {
            assert_eq!((round::<E4m3>(value), round::<E5m2>(value)), (four, five), "{value}");
        }
        assert!(round::<E4m3>(f32::NAN).is_nan() && round::<E5m2>(-f32::NAN).is_nan());
    }

    #[test]
    fn every_finite_value_is_its_own_rounding() {
        fn check<T: Fp8>() {
            let values = (0..=255).map(|code: u8| bytemuck::cast::<u8, T>(code).to_f32());
            for value in values.filter(|value| value.is_finite()) {
                assert_eq!(round::<T>(value).to_bits(), value.to_bits());
                assert!(value.abs() <= T::LARGEST);
            }
        }
        check::<E4m3>();
        check::<E5m2>();
    }
}
